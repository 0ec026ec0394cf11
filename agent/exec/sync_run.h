// One sync on this node, from its first step to its end.
#ifndef XFER_AGENT_EXEC_SYNC_RUN_H_
#define XFER_AGENT_EXEC_SYNC_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/peer_sender.h"
#include "agent/exec/plan_part.h"
#include "agent/exec/send_ledger.h"
#include "agent/exec/sync_failures.h"
#include "agent/exec/sync_receive.h"
#include "agent/transport/transport.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// The way to one peer that CONNECT made ready.
struct PeerRoute {
  v1::Peer peer;
  Transport* transport = nullptr;  // null: the first endpoint to be opened decides
  // Shares of the transfers to the peer, one an endpoint.
  struct Lane {
    std::unique_ptr<Endpoint> endpoint;
    std::vector<uint32_t> transfers;
  };
  std::vector<Lane> lanes;
};

// What CONNECT finds out; constant afterwards but for the endpoints, which TRANSFER takes.
struct SyncSetup {
  SyncKey key;
  std::string job;
  int64_t version = 0;
  v1::Verify verify = v1::VERIFY_FULL;
  std::shared_ptr<const PlanPart> part;
  std::vector<RankPin> pins;  // by rank index
  std::vector<PeerRoute> routes;
};

// Steps of a sync come one after the other; one thread executes each. Events that come between (its
// end, a rank that goes, arrivals) come from other threads. Thread-safe where nothing else is said.
class SyncRun : public std::enable_shared_from_this<SyncRun> {
 public:
  SyncRun(uint64_t sync_id, std::string job, int64_t version)
      : sync_id_(sync_id), job_(std::move(job)), version_(version) {}

  uint64_t sync_id() const { return sync_id_; }
  const std::string& job() const { return job_; }
  int64_t version() const { return version_; }

  // --- the order of steps

  // A step and what it has to end by.
  struct Timed {
    v1::Step step;
    absl::Time deadline;
  };
  // Takes the run for a step. True: execute it now. False: it is RESUME and comes while another
  // step is running; that one is cut short, and EndStep() hands this one out. An error is the
  // step's answer.
  absl::StatusOr<bool> BeginStep(const Timed& step, absl::Time expires);
  // The answer to a step of this kind that was executed already.
  std::optional<v1::StepResult> Answered(v1::StepKind kind) const;
  struct Next {
    bool clean_up = false;      // the sync has ended, and the caller is to clean up
    std::optional<Timed> step;  // to be executed now; or to be answered only, if the sync has ended
  };
  Next EndStep(const v1::StepResult& result);
  // The sync is over. Returns true where no step is running, so that the caller must clean up;
  // false where EndStep() will say so, or somebody ended it before.
  bool End(const absl::Status& reason);
  // No more bytes are moved, the running step is cut short, only RESUME is still possible.
  void Interrupt(const absl::Status& reason);
  // The running step has to end early, for stop_reason().
  bool stopped() const;
  absl::Status stop_reason() const;
  // No step is running and no other came before the last one's limit.
  bool Expired(absl::Time now) const;

  // --- waiting

  // Wakes whoever waits, and parked senders.
  void Changed();
  // Until `done`, or the running step has to stop, or `limit`. True: done. `done` is called under
  // the run's lock.
  bool WaitFor(absl::FunctionRef<bool()> done, absl::Time limit);

  // --- the parts; made by the step that needs them first, used by the running step alone

  SyncSetup setup;
  std::shared_ptr<SyncFailures> failures;
  std::shared_ptr<SyncReceive> receive;
  std::shared_ptr<SendLedger> ledger;
  // Ranks whose hold or pause hook was called and that are still to be released or resumed.
  std::vector<RankPin> held;
  bool receiving = false;  // the agent's ReceiveTable knows of it

  // Makes the parts above for a setup that is complete, and lets RankGone() see them.
  void Prepare(Clock* clock);
  // Fails what needs the rank; nothing where the sync does not know it.
  void RankGone(const LocalRank& rank);

  // --- senders

  // Runs a sender on a thread of a pool.
  using RunSender = std::function<void(std::shared_ptr<PeerSender>)>;
  // From now on stopped at the sync's end; parked senders are woken by `run`.
  void StartSending(std::shared_ptr<SendJob> job, RunSender run);
  uint64_t epoch() const;
  // Keeps the sender until the next change; runs it again where there was one since `epoch`.
  void Park(std::shared_ptr<PeerSender> sender, uint64_t epoch);

 private:
  bool StoppedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ended_ || (interrupted_ && running_ != v1::STEP_KIND_RESUME);
  }
  void StopSendersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t sync_id_;
  const std::string job_;
  const int64_t version_;

  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  v1::StepKind running_ ABSL_GUARDED_BY(mu_) = v1::STEP_KIND_UNSPECIFIED;  // unspecified: none
  std::optional<Timed> pending_ ABSL_GUARDED_BY(mu_);                      // RESUME
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status stop_reason_ ABSL_GUARDED_BY(mu_);  // of the end, else of the interruption
  absl::Time expires_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::vector<v1::StepResult> answers_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<PeerSender>> parked_ ABSL_GUARDED_BY(mu_);
  RunSender run_sender_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SendJob> send_job_ ABSL_GUARDED_BY(mu_);
  bool prepared_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_SYNC_RUN_H_
