// One agent's stream.
#ifndef XFER_COORDINATOR_SERVICE_AGENT_SESSION_H_
#define XFER_COORDINATOR_SERVICE_AGENT_SESSION_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/service/session_table.h"
#include "coordinator/service/state.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// Reads events one at a time and handles each at once; writes queued commands in their order. Uses
// no thread of its own. gRPC is never called with the lock held: it may run a reaction on the same
// thread.
class AgentSession final : public grpc::ServerBidiReactor<v1::AgentEvent, v1::AgentCommand>,
                           public CommandSink {
 public:
  // Lives until its stream is done; the table may hold it longer. Both arguments outlive the
  // stream.
  static AgentSession* Start(CoordinatorState* state, grpc::CallbackServerContext* context);

  bool Send(v1::AgentCommand command) override ABSL_LOCKS_EXCLUDED(mu_);
  void Close(const absl::Status& why, bool now) override ABSL_LOCKS_EXCLUDED(mu_);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  AgentSession(CoordinatorState* state, grpc::CallbackServerContext* context)
      : state_(state), context_(context) {}

  // Whether the caller is to call Finish(); true once.
  bool MayFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Handle();
  absl::Status HandleHello(const v1::Hello& hello);
  absl::Status HandleHeartbeat(const v1::Heartbeat& heartbeat, int64_t received_ns);
  absl::Status HandleRankGone(const v1::RankGone& gone);
  void HandleReport(const v1::RankReport& report);

  CoordinatorState* const state_;
  grpc::CallbackServerContext* const context_;

  // Reading side; one reaction at a time.
  v1::AgentEvent event_;
  std::string node_;
  uint64_t incarnation_ = 0;
  uint64_t session_ = 0;  // 0: no Hello yet

  absl::Mutex mu_;
  std::shared_ptr<AgentSession> self_ ABSL_GUARDED_BY(mu_);  // until OnDone()
  std::deque<v1::AgentCommand> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;  // a write is in flight, of current_
  v1::AgentCommand current_;                   // belongs to gRPC while writing_
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mu_);
  bool cancelling_ ABSL_GUARDED_BY(mu_) = false;  // TryCancel() is being called
  bool finished_ ABSL_GUARDED_BY(mu_) = false;    // Finish() was called, or is about to be
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SERVICE_AGENT_SESSION_H_
