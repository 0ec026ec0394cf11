// Starts syncs, hands them what happens, and knows those that are over.
#ifndef XFER_COORDINATOR_SYNC_SYNC_RUNNER_H_
#define XFER_COORDINATOR_SYNC_SYNC_RUNNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/history.h"
#include "coordinator/sync/sync_task.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// Runs each sync on a thread of its own. Thread-safe.
class SyncRunner {
 public:
  struct Options {
    size_t max_running = 32;           // more are refused with ResourceExhausted
    size_t history = 1000;             // syncs kept
    size_t history_with_timings = 50;  // of these, the last ones with their single transfers
    absl::Duration resume_grace = absl::Seconds(5);  // for RESUME, beyond a sync's deadline
  };
  // `store` is borrowed.
  SyncRunner(const SyncContext& context, Store* store, const Options& options);
  // Takes what the store has; before anything else. Syncs that were running when it was last
  // written have failed.
  absl::Status Restore() ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels what runs and waits for it.
  ~SyncRunner();

  // Checks and starts; returns the sync's id at once. Errors: see TriggerSync in coordinator.proto,
  // and InvalidArgument for a value that makes no sense, Unimplemented for a mode that does not
  // exist yet, ResourceExhausted for too many at once, Unavailable after Shutdown(), or the
  // store's.
  absl::StatusOr<uint64_t> Trigger(const v1::TriggerSyncRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks a running sync to end. NotFound; OK where it has ended.
  absl::StatusOr<v1::Sync> Cancel(uint64_t sync_id, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  const History& history() const { return history_; }
  // Keeps what an agent reports of single transfers. NotFound: no such sync, or too old.
  absl::Status AddTimings(const v1::TransferTimings& timings) ABSL_LOCKS_EXCLUDED(mu_);

  // Refuses new syncs, cancels the running ones with `why`, gives RESUME `grace`, and returns when
  // all have ended.
  void Shutdown(const absl::Status& why, absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_);

  // --- what happens, for whichever sync it concerns
  void OnStepResult(const std::string& node, uint64_t incarnation, const v1::StepResult& result);
  void OnProgress(const std::string& node, const v1::Progress& progress);
  void OnSessionOpened(const std::string& node, uint64_t incarnation);
  void OnSessionBroken(const std::string& node, uint64_t incarnation, const std::string& reason);
  void OnNodeLost(const std::string& node, uint64_t incarnation, const std::string& reason);
  void OnRankGone(const std::string& job, const RankEntry& rank, const std::string& reason);

 private:
  using Tasks = std::vector<std::shared_ptr<SyncTask>>;
  struct Running {
    std::shared_ptr<SyncTask> task;
    std::jthread thread;
  };
  // Takes any number that a sync has had towards the agents.
  std::shared_ptr<SyncTask> Find(uint64_t sync_id) const ABSL_LOCKS_EXCLUDED(mu_);
  // Takes a number and starts; engines that were marked for it are let go where it fails.
  absl::StatusOr<uint64_t> Start(const v1::TriggerSyncRequest& request, SyncOptions options,
                                 int64_t trigger_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t AnotherId(uint64_t sync_id) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t Resolve(uint64_t agents_id) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  Tasks All() const ABSL_LOCKS_EXCLUDED(mu_);
  void Done(uint64_t sync_id) ABSL_LOCKS_EXCLUDED(mu_);

  SyncContext context_;  // never changed once made
  Store* const store_;
  const Options options_;
  History history_;
  mutable absl::Mutex mu_;
  absl::CondVar ended_;  // a sync has
  std::map<uint64_t, Running> running_ ABSL_GUARDED_BY(mu_);
  std::vector<std::jthread> finished_ ABSL_GUARDED_BY(mu_);      // to be joined
  std::map<uint64_t, uint64_t> other_ids_ ABSL_GUARDED_BY(mu_);  // towards agents -> the sync's own
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SYNC_SYNC_RUNNER_H_
