// Executes the steps of syncs on this node.
#ifndef XFER_AGENT_EXEC_EXECUTOR_H_
#define XFER_AGENT_EXEC_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/endpoint_pool.h"
#include "agent/exec/interfaces.h"
#include "agent/exec/plan_part.h"
#include "agent/exec/receive_state.h"
#include "agent/exec/sync_run.h"
#include "agent/exec/thread_pool.h"
#include "agent/memory/rank_table.h"
#include "common/base/clock.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

struct ExecutorOptions {
  std::string node;
  uint64_t chunk_bytes = 1 << 20;      // a multiple of kDigestLeafBytes
  uint64_t inflight_bytes = 32 << 20;  // of an endpoint
  int threads = 0;                     // that send; 0: one a core, 4 to 16
  int local_lanes = 0;                 // endpoints within this node; 0: up to 4, by cores
  absl::Duration receive_stall =
      absl::Seconds(60);  // a rank to which nothing comes for so long fails
  // A sync of which no step comes for so long after the last one's deadline is given up.
  absl::Duration orphan_grace = absl::Seconds(30);
  Clock* clock = Clock::Real();  // borrowed
};

// Every step is answered once, through CoordinatorLink::Send(), before its deadline. Thread-safe.
class SyncExecutor {
 public:
  // Pointers are borrowed and outlive the executor.
  SyncExecutor(ExecutorOptions options, RankTable* ranks, ReceiveState* receive,
               EndpointPool* endpoints, HookCaller* hooks, CoordinatorLink* link);
  // Ends all syncs.
  ~SyncExecutor();

  // These return at once.
  void HandleStep(v1::Step step);
  void HandleEndSync(const v1::EndSync& end);
  void ForgetPlan(uint64_t plan_id) { plans_.Forget(plan_id); }
  // The coordinator's session broke: it takes the running steps for failed. No more bytes move, and
  // what is left of each sync is RESUME, for which the coordinator may come back.
  void SessionBroken(const absl::Status& reason);
  // Ends all syncs: nobody will, for the coordinator is lost. Ranks are resumed and released with
  // `reason`.
  void AbandonAll(const absl::Status& reason);
  // A rank was unregistered: what needs it fails.
  void RankGone(const LocalRank& rank);

 private:
  using RunPtr = std::shared_ptr<SyncRun>;
  using RankStatus = std::pair<RankId, absl::Status>;

  absl::StatusOr<RunPtr> RunOf(const v1::Step& step);
  void Execute(const RunPtr& run, const v1::Step& step, absl::Time deadline);
  v1::StepResult RunStep(const RunPtr& run, const v1::Step& step, absl::Time deadline);
  void Answer(v1::StepResult result);
  void Refuse(const v1::Step& step, const absl::Status& status);
  std::vector<RunPtr> Runs();
  void EndRun(const RunPtr& run, const absl::Status& reason);
  void CleanUp(const RunPtr& run);
  void Reap();

  // step_connect.cc
  // Connects unless CONNECT has: a coordinator leaves that step out while this session has
  // acknowledged it for the plan before. Peers are then those of that time.
  absl::Status EnsureConnected(SyncRun& run, const v1::Step& step, absl::Time deadline);
  absl::Status Connect(SyncRun& run, const v1::Step& step, absl::Time deadline);
  absl::StatusOr<std::shared_ptr<const PlanPart>> FetchPlan(uint64_t plan_id, absl::Time deadline);
  absl::StatusOr<std::vector<PeerRoute>> PlanRoutes(const PlanPart& part, const v1::Step& step);
  absl::Status OpenLanes(SyncRun& run, std::vector<PeerRoute>& routes, absl::Time deadline);
  size_t LanesOf(const Transport* transport) const;

  // step_hooks.cc
  void Pause(SyncRun& run, const v1::Step& step, absl::Time deadline, v1::StepResult& result);
  void Commit(SyncRun& run, const v1::Step& step, absl::Time deadline, v1::StepResult& result);
  void Resume(SyncRun& run, const v1::Step& step, absl::Time deadline, v1::StepResult& result);
  absl::Status BeginReceive(SyncRun& run, absl::Time deadline);
  absl::Status CloseReceive(SyncRun& run, absl::Time deadline);
  absl::StatusOr<RankPin> PinOf(const SyncRun& run, const v1::RankId& id) const;
  std::vector<RankPin> PinsOf(const SyncRun& run, const v1::Step& step,
                              std::vector<RankStatus>& failed) const;
  // Calls a hook of each rank and waits for all; appends those that failed.
  void CallHooks(SyncRun& run, const std::vector<HookOrder>& orders,
                 const std::vector<RankPin>& ranks, absl::Time deadline,
                 std::vector<RankStatus>& failed);
  void LetGo(SyncRun& run, const absl::Status& reason);

  // step_transfer.cc
  void TransferAll(const RunPtr& run, const v1::Step& step, absl::Time deadline,
                   v1::StepResult& result);
  // Number of senders that are not done; shared with them.
  using SenderCount = std::shared_ptr<std::atomic<int>>;
  SenderCount StartSenders(const RunPtr& run, absl::Time deadline);
  using SenderDone = std::function<void(SyncRun&, PeerSender&)>;
  void RunSender(const RunPtr& run, const std::shared_ptr<PeerSender>& sender,
                 const SenderDone& done);
  // True: everything that was to be sent and to arrive has been, or has failed.
  bool AwaitTransfers(SyncRun& run, const SenderCount& senders, absl::Time deadline);
  void FailUnsent(SyncRun& run, const absl::Status& cause);
  void FillTransferResult(const SyncRun& run, v1::StepResult& result);
  void ReportTimings(const SyncRun& run);

  const ExecutorOptions options_;
  RankTable* const ranks_;
  ReceiveState* const receive_;
  EndpointPool* const endpoints_;
  HookCaller* const hooks_;
  CoordinatorLink* const link_;
  PlanPartCache plans_;

  absl::Mutex mu_;
  absl::CondVar stop_changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, RunPtr> runs_ ABSL_GUARDED_BY(mu_);
  // The last that was said of each node.
  absl::flat_hash_map<std::string, v1::Peer> peers_ ABSL_GUARDED_BY(mu_);

  // Steps wait for what the other two pools do, never the other way round; members are destroyed in
  // reverse order, so steps end first.
  ThreadPool senders_;
  ThreadPool background_;  // opening endpoints, reporting, cleaning up
  ThreadPool steps_;
  std::thread reaper_;
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_EXECUTOR_H_
