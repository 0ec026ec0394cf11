// The agents' open sessions.
#ifndef XFER_COORDINATOR_SERVICE_SESSION_TABLE_H_
#define XFER_COORDINATOR_SERVICE_SESSION_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/sync/gateway.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// One session's way down to its agent. Thread-safe; nothing blocks.
class CommandSink {
 public:
  virtual ~CommandSink() = default;
  // Queues a command. False: the session is ending.
  virtual bool Send(v1::AgentCommand command) = 0;
  // Ends the session after what is queued, or at once if `now`, with `why` as its status.
  virtual void Close(const absl::Status& why, bool now) = 0;
};

// Thread-safe.
class SessionTable final : public AgentGateway {
 public:
  void Add(uint64_t session, const std::string& node, uint64_t incarnation,
           std::shared_ptr<CommandSink> sink) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(uint64_t session) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a session at once; no effect where it is not in the table.
  void Close(uint64_t session, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all of them, after what is queued.
  void CloseAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<uint64_t> SendStep(const std::string& node, uint64_t incarnation,
                                    const v1::Step& step) override ABSL_LOCKS_EXCLUDED(mu_);
  void EndSync(const std::string& node, uint64_t incarnation, uint64_t sync_id,
               const std::string& reason) override ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetPlan(const std::string& node, uint64_t plan_id) override ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t SessionOf(const std::string& node, uint64_t incarnation) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::string node;
    uint64_t incarnation = 0;
    std::shared_ptr<CommandSink> sink;
  };
  // The node's newest session of this incarnation (0: of any); {0, null} where there is none.
  std::pair<uint64_t, std::shared_ptr<CommandSink>> Find(const std::string& node,
                                                         uint64_t incarnation) const
      ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  std::map<uint64_t, Entry> sessions_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint64_t> by_node_ ABSL_GUARDED_BY(mu_);  // newest session
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SERVICE_SESSION_TABLE_H_
