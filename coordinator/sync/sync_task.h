// One sync, from trigger to end.
#ifndef XFER_COORDINATOR_SYNC_SYNC_TASK_H_
#define XFER_COORDINATOR_SYNC_SYNC_TASK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "coordinator/registry/registry.h"
#include "coordinator/sync/connect_ledger.h"
#include "coordinator/sync/gateway.h"
#include "coordinator/sync/history.h"
#include "coordinator/sync/plan_cache.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// What every sync works with; all borrowed and longer-lived.
struct SyncContext {
  Clock* clock = nullptr;
  AgentGateway* gateway = nullptr;
  Registry* registry = nullptr;
  PlanCache* plans = nullptr;
  ConnectLedger* ledger = nullptr;
  // Addresses of a living node. Unavailable where that incarnation is not alive any more.
  std::function<absl::StatusOr<v1::Peer>(const std::string& node, uint64_t incarnation)> peer_of;
  // A number never used for a sync before, whose events reach the sync `sync_id` from now on.
  std::function<uint64_t(uint64_t sync_id)> another_id;
  // Keeps what is known of a sync.
  std::function<absl::Status(const v1::Sync&)> store_sync;
};

struct SyncOptions {
  v1::Verify verify = v1::VERIFY_FULL;
  std::string transport;  // "": chosen for each pair
  absl::Duration deadline = absl::Seconds(300);
  // How long RESUME may take beyond the deadline: paused engines are always told.
  absl::Duration resume_grace = absl::Seconds(5);
};

// Run() belongs to one thread and returns within deadline + resume_grace, whatever agents do; the
// events may come from any thread at any time.
class SyncTask {
 public:
  // `record` is what the outside sees; its trigger is the start of the deadline.
  SyncTask(const SyncContext& context, SyncInput input, const SyncOptions& options,
           std::shared_ptr<SyncRecord> record);

  // Every phase; at its return the engines are free for another sync and the record has ended.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the sync as soon as it can: engines not yet committed fail with `why`, RESUME gets
  // `grace`.
  void Cancel(const absl::Status& why, absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_);

  void OnStepResult(const std::string& node, uint64_t incarnation, const v1::StepResult& result)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnProgress(const std::string& node, uint64_t bytes_done) ABSL_LOCKS_EXCLUDED(mu_);
  void OnSessionOpened(const std::string& node, uint64_t incarnation) ABSL_LOCKS_EXCLUDED(mu_);
  void OnSessionBroken(const std::string& node, uint64_t incarnation, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnNodeLost(const std::string& node, uint64_t incarnation, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnRankGone(const std::string& job, const RankEntry& rank, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<SyncRecord>& record() const { return record_; }

 private:
  struct Engine {
    absl::Status status;   // first failure
    bool dirty = false;    // before this sync, or by it
    bool touched = false;  // bytes may have moved
    bool committed = false;
    std::set<std::string> nodes;  // of its own ranks
    std::vector<v1::TransferFailure> failures;
    int32_t failure_count = 0;
    bool live() const { return status.ok() && !committed; }
  };
  struct Node {
    uint64_t incarnation = 0;
    absl::Status broken;  // its session ended during this sync
    bool lost = false;
    bool has_trainers = false;
    std::vector<const RankEntry*> ranks;
    uint64_t bytes_done = 0;
  };
  struct Reply {
    bool done = false;
    uint64_t session = 0;
    absl::Status status;  // why there is no result
    v1::StepResult result;
  };
  using Steps = std::map<std::string, v1::Step>;
  using Replies = std::map<std::string, Reply>;
  using EngineSet = std::vector<int32_t>;

  // --- phases.cc; on Run()'s thread
  // PLAN, CONNECT and PAUSE; again, as another sync for the agents, with the engines that are left
  // while some drop out. False: none is left.
  bool Prepare() ABSL_LOCKS_EXCLUDED(mu_);
  void StartAgain() ABSL_LOCKS_EXCLUDED(mu_);
  void EndOnAgents(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status MakePlan(const EngineSet& engines) ABSL_LOCKS_EXCLUDED(mu_);
  void Connect() ABSL_LOCKS_EXCLUDED(mu_);
  void Pause() ABSL_LOCKS_EXCLUDED(mu_);
  void Transfer() ABSL_LOCKS_EXCLUDED(mu_);
  void Commit() ABSL_LOCKS_EXCLUDED(mu_);
  void Resume() ABSL_LOCKS_EXCLUDED(mu_);
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);
  void FailOutdated() ABSL_LOCKS_EXCLUDED(mu_);
  void MarkFailedDirty() ABSL_LOCKS_EXCLUDED(mu_);
  // Ranks that take part, by node: those of live engines, and trainers if wanted.
  std::map<std::string, std::vector<RankId>> Participants(bool trainers) const
      ABSL_LOCKS_EXCLUDED(mu_);
  v1::Step BaseStep(v1::StepKind kind, int64_t deadline_ns) const ABSL_LOCKS_EXCLUDED(mu_);
  void SetResumeFate(const std::set<RankId>& ranks, v1::Step& step) const ABSL_LOCKS_EXCLUDED(mu_);
  Replies SendResume(bool last) ABSL_LOCKS_EXCLUDED(mu_);
  void ChargeResume(const Replies& replies) ABSL_LOCKS_EXCLUDED(mu_);
  void RecordTransfer(const Replies& replies, int64_t start_ns, int64_t end_ns)
      ABSL_LOCKS_EXCLUDED(mu_);
  v1::SyncState EndState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EnterPhase(v1::Phase phase);
  void AddPhase(v1::Phase phase, int64_t start_ns, int64_t end_ns);
  int64_t Now() const { return context_.clock->MonotonicNanos(); }

  // --- sync_task.cc
  // Sends the steps and waits until each node has answered or cannot any more, the deadline has
  // passed, the sync is cancelled, or no engine is left to work for (the last two not for RESUME,
  // which also waits for the session of a node that may come back). Failures are charged to engines
  // on the way.
  Replies RunStep(v1::StepKind kind, Steps steps, int64_t deadline_ns) ABSL_LOCKS_EXCLUDED(mu_);
  void SendSteps(const std::vector<std::string>& nodes) ABSL_LOCKS_EXCLUDED(mu_);
  void WaitForReplies(int64_t deadline_ns) ABSL_LOCKS_EXCLUDED(mu_);
  bool StepOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbandonPending(int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NodeFailed(const std::string& node, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishProgress() ABSL_LOCKS_EXCLUDED(mu_);

  // --- charge.cc: which engines a failure concerns
  void Charge(const std::string& node, const v1::StepResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ChargeNode(const std::string& node, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ChargeFailures(const std::string& node, const v1::StepResult& result, bool& charged)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ChargeRanks(const std::string& node, const v1::StepResult& result, bool& charged)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RequireVerdicts(const std::string& node, const v1::StepResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool DependsOn(int32_t engine, const std::string& node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailEngine(int32_t engine, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailAll(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  EngineSet LiveEngines() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<v1::EngineResult> EngineResults() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SyncContext context_;
  const SyncInput input_;
  const SyncOptions options_;
  const std::shared_ptr<SyncRecord> record_;
  const uint64_t id_;

  // Run()'s thread only.
  uint64_t secret_;                                 // of this sync's data connections
  std::map<std::string, std::set<RankId>> paused_;  // what must be resumed, by node
  std::set<std::string> told_;                      // nodes that know of the sync

  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  // The sync's number towards the agents; another one after StartAgain(), since an agent takes each
  // step of a sync once.
  uint64_t agents_id_ ABSL_GUARDED_BY(mu_);
  int64_t deadline_ns_ ABSL_GUARDED_BY(mu_);
  int64_t resume_deadline_ns_ ABSL_GUARDED_BY(mu_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mu_);
  absl::Status first_failure_ ABSL_GUARDED_BY(mu_);
  std::map<int32_t, Engine> engines_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Node> nodes_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const CachedPlan> plan_ ABSL_GUARDED_BY(mu_);
  // The step in flight; UNSPECIFIED: none.
  v1::StepKind step_ ABSL_GUARDED_BY(mu_) = v1::STEP_KIND_UNSPECIFIED;
  v1::StepKind reached_ ABSL_GUARDED_BY(mu_) = v1::STEP_KIND_UNSPECIFIED;  // the last one begun
  Steps steps_ ABSL_GUARDED_BY(mu_);
  Replies replies_ ABSL_GUARDED_BY(mu_);
  size_t pending_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> reopened_ ABSL_GUARDED_BY(mu_);  // sessions that came back during RESUME
  bool progressed_ ABSL_GUARDED_BY(mu_) = false;
  bool engines_changed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SYNC_SYNC_TASK_H_
