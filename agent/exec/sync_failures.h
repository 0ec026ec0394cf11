// What has failed in one sync, by engine.
#ifndef XFER_AGENT_EXEC_SYNC_FAILURES_H_
#define XFER_AGENT_EXEC_SYNC_FAILURES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "agent/exec/plan_part.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// A failed transfer fails the engine that it is for: what else goes there is abandoned, other
// engines go on. Thread-safe.
class SyncFailures {
 public:
  // `on_change` is called after each new failure, without locks held.
  SyncFailures(std::shared_ptr<const PlanPart> part, std::function<void()> on_change);

  // `transfer` is an index into the part's transfers.
  void FailTransfer(uint32_t transfer, const absl::Status& cause);
  // A rank of the plan (by index) failed as a destination.
  void FailRank(int32_t rank, const absl::Status& cause);
  // The sync cannot go on for any destination.
  void FailAll(const absl::Status& cause);

  // Whether the engine of destination rank `rank` (an index) has failed. Does not lock.
  bool Failed(int32_t rank) const {
    return engines_[engine_of_[rank]].failed.load(std::memory_order_acquire);
  }
  absl::Status StatusOf(int32_t rank) const;  // the first failure of its engine; OK: none
  absl::Status first() const;                 // of all; OK: none
  // At most 64, of which at most 8 an engine.
  std::vector<v1::TransferFailure> Report() const;

 private:
  struct Engine {
    std::atomic<bool> failed{false};
    absl::Status status;  // guarded by mu_
    int reported = 0;     // guarded by mu_
  };
  bool FailEngineLocked(Engine& engine, const absl::Status& cause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<const PlanPart> part_;
  const std::function<void()> on_change_;
  std::vector<int32_t> engine_of_;  // by rank index; constant
  std::vector<Engine> engines_;     // size is constant
  mutable absl::Mutex mu_;
  absl::Status first_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::TransferFailure> report_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_SYNC_FAILURES_H_
