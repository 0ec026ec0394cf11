// What one sync has sent from this node.
#ifndef XFER_AGENT_EXEC_SEND_LEDGER_H_
#define XFER_AGENT_EXEC_SEND_LEDGER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/exec/plan_part.h"

namespace xfer {

// A transfer that was acknowledged. Moments are this host's monotonic nanoseconds.
struct SentTransfer {
  uint32_t transfer = 0;  // index into the part's transfers
  int64_t start_ns = 0;   // first byte posted (of the last attempt)
  int64_t end_ns = 0;     // acknowledged
  uint32_t retries = 0;
  const char* transport = "";  // a literal, or as long-lived
  // Of a transport with several ways: which ones it took, and how many bytes went by each.
  std::vector<std::pair<std::string, uint64_t>> by_rail;

  // "tcp", "verbs mlx5_0:1+mlx5_1:1"
  std::string route() const {
    std::string text = transport;
    for (const auto& [rail, bytes] : by_rail) {
      text += by_rail.front().first == rail ? " " : "+";
      text += rail;
    }
    return text;
  }
};

struct SentByRank {
  uint64_t bytes = 0;
  uint32_t transfers = 0;
  uint32_t retries = 0;
  int64_t first_ns = 0;  // 0: nothing was posted
  int64_t last_ns = 0;
  int64_t digest_ns = 0;
  std::map<std::string, uint64_t> bytes_by_transport;
};

// Thread-safe.
class SendLedger {
 public:
  explicit SendLedger(std::shared_ptr<const PlanPart> part) : part_(std::move(part)) {}

  // A first byte of source rank `rank` (an index) is posted.
  void Started(int32_t rank, int64_t now_ns) {
    absl::MutexLock lock(&mu_);
    int64_t& first = by_rank_[rank].first_ns;
    if (first == 0 || now_ns < first) first = now_ns;
  }
  void Acknowledged(const SentTransfer& sent) {
    absl::MutexLock lock(&mu_);
    const Transfer& transfer = part_->transfers[sent.transfer].planned;
    SentByRank& rank = by_rank_[transfer.source];
    rank.bytes += transfer.bytes;
    ++rank.transfers;
    rank.last_ns = sent.end_ns;
    if (sent.by_rail.empty()) rank.bytes_by_transport[sent.transport] += transfer.bytes;
    for (const auto& [rail, bytes] : sent.by_rail) {
      rank.bytes_by_transport[std::string(sent.transport) + " " + rail] += bytes;
    }
    transfers_.push_back(sent);
  }
  void Retried(int32_t rank) {
    absl::MutexLock lock(&mu_);
    ++by_rank_[rank].retries;
  }
  void Digested(int32_t rank, int64_t ns) {
    absl::MutexLock lock(&mu_);
    by_rank_[rank].digest_ns += ns;
  }

  std::map<int32_t, SentByRank> ByRank() const {
    absl::MutexLock lock(&mu_);
    return by_rank_;
  }
  std::vector<SentTransfer> Transfers() const {
    absl::MutexLock lock(&mu_);
    return transfers_;
  }

 private:
  const std::shared_ptr<const PlanPart> part_;
  mutable absl::Mutex mu_;
  std::map<int32_t, SentByRank> by_rank_ ABSL_GUARDED_BY(mu_);
  std::vector<SentTransfer> transfers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_SEND_LEDGER_H_
