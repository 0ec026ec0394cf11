// The agent's session with the coordinator.
#ifndef XFER_AGENT_SERVICE_COORDINATOR_SESSION_H_
#define XFER_AGENT_SERVICE_COORDINATOR_SESSION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/interfaces.h"
#include "agent/memory/rank_table.h"
#include "agent/service/clock_offset.h"
#include "agent/service/coordinator_calls.h"
#include "common/base/clock.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {

// What comes from the coordinator; called on the session's threads, one at a time each.
class SessionHandler {
 public:
  virtual ~SessionHandler() = default;
  // Must not block: nothing else is read meanwhile.
  virtual void OnCommand(v1::AgentCommand command) = 0;
  virtual void OnSessionBroken(const absl::Status& reason) = 0;
  // The session has been broken for longer than the lease: the coordinator has given this agent up.
  virtual void OnLost(const absl::Status& reason) = 0;
  // The ranks that the coordinator has to know of.
  virtual std::vector<RankPin> RanksToPublish() = 0;
};

struct SessionOptions {
  std::string coordinator;  // HOST:PORT
  v1::Hello hello;
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(1);
  Clock* clock = Clock::Real();  // borrowed
};

// Keeps the stream up, for ever: a coordinator that is not there or goes away is tried again. After
// each connection all manifests are published again. Events wait for the next session if there is
// none, except answers to steps and progress, which belong to the session that asked. Thread-safe.
class CoordinatorSession final : public CoordinatorLink {
 public:
  explicit CoordinatorSession(const SessionOptions& options);
  ~CoordinatorSession() override;

  // `handler` is borrowed and must outlive Stop().
  void Start(SessionHandler* handler);
  // Says goodbye, if there is a session, cancels all calls, and ends. Returns within about a
  // second.
  void Stop(const std::string& reason);

  bool connected() const;
  // DeadlineExceeded names the coordinator's address.
  absl::Status WaitConnected(absl::Time deadline);
  CoordinatorCalls& calls() { return calls_; }

  absl::Status FetchPlan(uint64_t plan_id, absl::Time deadline,
                         absl::FunctionRef<absl::Status(const v1::PlanPart&)> part) override {
    return calls_.FetchPlan(plan_id, deadline, part);
  }
  absl::Status ReportTimings(const std::vector<v1::TransferTimings>& batches,
                             absl::Time deadline) override {
    return calls_.ReportTimings(batches, deadline);
  }
  void Send(v1::AgentEvent event) override;
  int64_t ClockOffsetNanos() const override { return offset_.offset_ns(); }

 private:
  // One stream and its context.
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::AgentEvent, v1::AgentCommand>> rpc;
    absl::Mutex write_mu;  // held while something is written
  };

  void Run();
  bool Connect();
  absl::Status RunStream();
  void Handle(v1::AgentCommand command);
  void Broken(const absl::Status& reason);
  void CheckLost();
  void WriteLoop();
  bool Write(Stream& stream, const v1::AgentEvent& event);
  v1::AgentEvent MakeHeartbeat() const;
  void PublishLoop();
  // Returns false where some could not be published.
  bool PublishAll();

  const SessionOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::AgentHub::Stub> hub_;
  CoordinatorCalls calls_;
  ClockOffset offset_;
  SessionHandler* handler_ = nullptr;

  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // null: none open
  bool welcomed_ ABSL_GUARDED_BY(mu_) = false;           // the stream may be written to
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<v1::AgentEvent> queue_ ABSL_GUARDED_BY(mu_);
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
  absl::Time next_heartbeat_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int burst_ ABSL_GUARDED_BY(mu_) = 0;  // heartbeats still to be sent in quick succession
  absl::Duration lease_ ABSL_GUARDED_BY(mu_) = absl::Seconds(5);
  bool publish_ ABSL_GUARDED_BY(mu_) = false;
  // Of the run thread.
  absl::Time broken_since_ = absl::InfiniteFuture();
  bool outage_told_ = false;

  std::thread runner_;
  std::thread writer_;
  std::thread publisher_;
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_COORDINATOR_SESSION_H_
