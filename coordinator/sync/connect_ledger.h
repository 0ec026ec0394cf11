// Which agents have acknowledged CONNECT for which plan, so that a steady state can skip the step.
#ifndef XFER_COORDINATOR_SYNC_CONNECT_LEDGER_H_
#define XFER_COORDINATOR_SYNC_CONNECT_LEDGER_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace xfer {

// An acknowledgement holds for the session that gave it, the plan and the transport. Thread-safe.
class ConnectLedger {
 public:
  bool Acked(const std::string& node, uint64_t session, uint64_t plan_id,
             const std::string& transport) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    auto it = nodes_.find(node);
    return it != nodes_.end() && session != 0 && it->second.session == session &&
           it->second.acked.contains({plan_id, transport});
  }
  void Ack(const std::string& node, uint64_t session, uint64_t plan_id,
           const std::string& transport) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Node& entry = nodes_[node];
    if (entry.session > session) return;  // of a session that has been replaced
    if (entry.session != session) entry = {session, {}};
    entry.acked.insert({plan_id, transport});
  }
  // The plan is gone, or its connections are in doubt: everybody connects again.
  void Forget(uint64_t plan_id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    for (auto& [name, node] : nodes_) {
      std::erase_if(node.acked, [plan_id](const auto& key) { return key.first == plan_id; });
    }
  }
  void ForgetNode(const std::string& node) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    nodes_.erase(node);
  }

 private:
  struct Node {
    uint64_t session = 0;
    std::set<std::pair<uint64_t, std::string>> acked;
  };
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Node> nodes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SYNC_CONNECT_LEDGER_H_
