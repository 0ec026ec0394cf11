// What is known of running and ended syncs.
#ifndef XFER_COORDINATOR_SYNC_HISTORY_H_
#define XFER_COORDINATOR_SYNC_HISTORY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/registry/notifier.h"
#include "coordinator/sync/plan_cache.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// One sync as the outside sees it. Written by the thread that runs it, read by anyone. Thread-safe.
class SyncRecord {
 public:
  SyncRecord(v1::Sync initial, int64_t trigger_ns);

  uint64_t id() const { return id_; }
  int64_t trigger_ns() const { return trigger_ns_; }  // coordinator's monotonic clock
  v1::Sync Snapshot() const ABSL_LOCKS_EXCLUDED(mu_);
  bool ended() const ABSL_LOCKS_EXCLUDED(mu_);
  std::string job() const { return job_; }

  // Changes the record and tells the watchers.
  void Update(absl::FunctionRef<void(v1::Sync&)> change) ABSL_LOCKS_EXCLUDED(mu_);
  // Told after every change.
  Notifier& watchers() { return watchers_; }

  // Transfers of the plan that it ran; before the first AddTimings().
  void SetNames(std::shared_ptr<const TransferNames> names) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps timings (absolute on the coordinator's axis) relative to the trigger; they are dropped
  // where this sync is too old to have any. InvalidArgument: a transfer that the plan does not
  // have, or more timings than it has transfers; names `node`.
  absl::Status AddTimings(const std::string& node, const v1::TransferTimings& timings)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls fn with each timing, names filled in.
  std::vector<v1::TransferTiming> Timings() const ABSL_LOCKS_EXCLUDED(mu_);
  void DropTimings() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Timing {
    TransferId transfer = 0;
    uint32_t retries = 0;
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    uint64_t bytes = 0;
    uint8_t transport = 0;  // index in transports_
  };
  uint8_t TransportIndex(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t id_;
  const std::string job_;
  const int64_t trigger_ns_;
  Notifier watchers_;
  mutable absl::Mutex mu_;
  v1::Sync sync_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const TransferNames> names_ ABSL_GUARDED_BY(mu_);
  std::vector<Timing> timings_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> transports_ ABSL_GUARDED_BY(mu_);
  bool keep_timings_ ABSL_GUARDED_BY(mu_) = true;
};

// The last syncs, newest last. Thread-safe.
class History {
 public:
  // Keeps `records` syncs, and the single transfers' timings of the last `with_timings`.
  History(size_t records, size_t with_timings) : records_(records), with_timings_(with_timings) {}

  void Add(std::shared_ptr<SyncRecord> record) ABSL_LOCKS_EXCLUDED(mu_);
  // NotFound. Id 0: the newest.
  absl::StatusOr<std::shared_ptr<SyncRecord>> Find(uint64_t id) const ABSL_LOCKS_EXCLUDED(mu_);
  // Newest first; `job` empty: of all.
  std::vector<std::shared_ptr<SyncRecord>> List(const std::string& job, size_t limit) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const size_t records_;
  const size_t with_timings_;
  mutable absl::Mutex mu_;
  std::deque<std::shared_ptr<SyncRecord>> list_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SYNC_HISTORY_H_
