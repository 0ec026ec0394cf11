#include "coordinator/service/agent_session.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "coordinator/registry/names.h"

namespace xfer {
namespace {

// An agent that does not read for so long that this many commands wait is not working any more.
constexpr size_t kMaxQueued = 4096;
constexpr int32_t kMaxNics = 256;
constexpr size_t kMaxReason = 512;

absl::StatusOr<NodeHello> Checked(const v1::Hello& hello) {
  XFER_RETURN_IF_ERROR(CheckName("node name", hello.node()));
  const std::string who = absl::StrCat("node ", hello.node());
  XFER_RETURN_IF_ERROR(Annotate(CheckHostPort("peer address", hello.peer_address()), who));
  if (!hello.data_address().empty()) {
    XFER_RETURN_IF_ERROR(Annotate(CheckHostPort("data address", hello.data_address()), who));
  }
  if (hello.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": incarnation 0 is none; take a random number at each start"));
  }
  if (hello.nics() < 1 || hello.nics() > kMaxNics) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": ", hello.nics(), " NICs are not between 1 and ", kMaxNics));
  }
  return NodeHello{hello.node(),         hello.incarnation(),          hello.peer_address(),
                   hello.data_address(), Shorten(hello.version(), 64), hello.nics()};
}

}  // namespace

AgentSession* AgentSession::Start(CoordinatorState* state, grpc::CallbackServerContext* context) {
  std::shared_ptr<AgentSession> session(new AgentSession(state, context));
  {
    absl::MutexLock lock(&session->mu_);
    session->self_ = session;
  }
  session->StartRead(&session->event_);
  return session.get();
}

bool AgentSession::Send(v1::AgentCommand command) {
  bool start = false;
  bool overrun = false;
  {
    absl::MutexLock lock(&mu_);
    if (closing_.has_value()) return false;
    if (!writing_) {
      writing_ = start = true;
      current_ = std::move(command);
    } else if (queue_.size() < kMaxQueued) {
      queue_.push_back(std::move(command));
    } else {
      overrun = true;
    }
  }
  if (start) StartWrite(&current_);
  if (overrun) {
    Close(absl::ResourceExhaustedError(absl::StrCat(kMaxQueued, " commands wait to be read")),
          /*now=*/true);
  }
  return !overrun;
}

bool AgentSession::MayFinish() {
  if (!closing_.has_value() || writing_ || cancelling_ || finished_) return false;
  finished_ = true;
  return true;
}

void AgentSession::OnWriteDone(bool ok) {
  bool next = false;
  bool finish = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (!ok) queue_.clear();
    if (queue_.empty()) {
      writing_ = false;
      finish = MayFinish();
      if (finish) status = *closing_;
    } else {
      current_ = std::move(queue_.front());
      queue_.pop_front();
      next = true;
    }
  }
  if (next) StartWrite(&current_);
  if (finish) Finish(ToGrpc(status));
}

void AgentSession::Close(const absl::Status& why, bool now) {
  bool cancel = false;
  {
    absl::MutexLock lock(&mu_);
    if (!closing_.has_value()) closing_ = why;
    if (now) queue_.clear();
    // A write in flight ends first; where the peer does not read, only a cancel ends it. Until that
    // has returned, the stream may not finish: the context would be gone.
    cancel = now && writing_ && !finished_ && !cancelling_;
    if (cancel) cancelling_ = true;
  }
  if (cancel) context_->TryCancel();
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (cancel) cancelling_ = false;
    if (!MayFinish()) return;
    status = *closing_;
  }
  Finish(ToGrpc(status));
}

void AgentSession::OnCancel() { Close(absl::CancelledError("the stream was cancelled"), true); }

void AgentSession::OnReadDone(bool ok) {
  if (!ok) {
    if (session_ != 0) state_->membership.Disconnect(session_, "the stream ended");
    Close(absl::OkStatus(), /*now=*/false);
    return;
  }
  if (absl::Status status = Handle(); !status.ok()) {
    spdlog::warn("node {}: session refused or ended: {}", node_.empty() ? "?" : node_,
                 std::string(status.message()));
    Close(status, /*now=*/false);
    return;
  }
  StartRead(&event_);
}

void AgentSession::OnDone() {
  if (session_ != 0) {
    state_->membership.Disconnect(session_, "the stream ended");
    state_->sessions.Remove(session_);
  }
  std::shared_ptr<AgentSession> self;  // released after the lock
  absl::MutexLock lock(&mu_);
  self = std::move(self_);
}

// --- events

absl::Status AgentSession::Handle() {
  const int64_t received_ns = state_->options.clock->MonotonicNanos();
  if (session_ == 0) {
    if (event_.has_hello()) return HandleHello(event_.hello());
    return absl::FailedPreconditionError("the first event of a session must be Hello");
  }
  if (event_.has_heartbeat()) return HandleHeartbeat(event_.heartbeat(), received_ns);
  if (!state_->membership.Heard(session_).ok()) {
    return absl::AbortedError(
        absl::StrCat("node ", node_, ": this session is over; begin a new one with Hello"));
  }
  switch (event_.event_case()) {
    case v1::AgentEvent::kRankGone:
      return HandleRankGone(event_.rank_gone());
    case v1::AgentEvent::kRankReport:
      HandleReport(event_.rank_report());
      return absl::OkStatus();
    case v1::AgentEvent::kStepResult:
      state_->syncs.OnStepResult(node_, incarnation_, event_.step_result());
      return absl::OkStatus();
    case v1::AgentEvent::kProgress:
      state_->syncs.OnProgress(node_, event_.progress());
      return absl::OkStatus();
    case v1::AgentEvent::kGoodbye:
      state_->membership.Leave(session_, Shorten(event_.goodbye().reason(), kMaxReason));
      return absl::OkStatus();
    case v1::AgentEvent::kHello:
      return absl::FailedPreconditionError(
          absl::StrCat("node ", node_, ": Hello comes once a session"));
    default:
      return absl::OkStatus();  // of a newer agent; not for us
  }
}

absl::Status AgentSession::HandleHello(const v1::Hello& hello) {
  XFER_ASSIGN_OR_RETURN(const NodeHello checked, Checked(hello));
  node_ = checked.name;
  incarnation_ = checked.incarnation;
  XFER_ASSIGN_OR_RETURN(session_, state_->membership.Join(checked));
  std::shared_ptr<AgentSession> self;
  {
    // Welcome is first on the stream, but is not written until the session is in the table: whoever
    // has read it may count on being reached.
    absl::MutexLock lock(&mu_);
    self = self_;
    if (closing_.has_value()) {
      return absl::CancelledError(absl::StrCat("node ", node_, ": the stream has ended"));
    }
    writing_ = true;
    current_.mutable_welcome()->set_lease_ms(absl::ToInt64Milliseconds(state_->options.lease));
    current_.mutable_welcome()->set_heartbeat_ms(
        absl::ToInt64Milliseconds(state_->options.heartbeat));
    // Whatever the coordinator has of the agent's ranks, an event may have been lost with the
    // session before. Publishing a registration again that is known changes nothing.
    queue_.emplace_back().mutable_reregister();
  }
  state_->sessions.Add(session_, node_, incarnation_, std::move(self));
  // It may have been replaced before it was in the table to be closed.
  const bool replaced = !state_->membership.Heard(session_).ok();
  if (!replaced) state_->syncs.OnSessionOpened(node_, incarnation_);
  StartWrite(&current_);
  if (replaced) {
    return absl::AbortedError(absl::StrCat("node ", node_, ": replaced by a newer session"));
  }
  spdlog::info("node {}: joined, incarnation {:x}, peers at {}, data at {}, {} NICs, version {}",
               node_, incarnation_, checked.peer_address, checked.data_address, checked.nics,
               checked.version);
  return absl::OkStatus();
}

absl::Status AgentSession::HandleHeartbeat(const v1::Heartbeat& heartbeat, int64_t received_ns) {
  if (!state_->membership.Heartbeat(session_, heartbeat.clock_offset_ns()).ok()) {
    return absl::AbortedError(
        absl::StrCat("node ", node_, ": this session is over; begin a new one with Hello"));
  }
  v1::AgentCommand command;
  v1::HeartbeatAck* ack = command.mutable_heartbeat_ack();
  ack->set_agent_send_ns(heartbeat.agent_send_ns());
  ack->set_coordinator_receive_ns(received_ns);
  ack->set_coordinator_send_ns(state_->options.clock->MonotonicNanos());
  Send(std::move(command));
  return absl::OkStatus();
}

absl::Status AgentSession::HandleRankGone(const v1::RankGone& gone) {
  XFER_ASSIGN_OR_RETURN(const RankId id, FromProto(gone.id()));
  state_->registry.DropRank(gone.job(), id, node_, incarnation_, gone.registration_id(),
                            gone.reason().empty() ? "its process ended" : gone.reason());
  return absl::OkStatus();
}

void AgentSession::HandleReport(const v1::RankReport& report) {
  const absl::Status status = state_->registry.Report(node_, incarnation_, report);
  // A rank that was dropped a moment ago is no fault of the session.
  if (!status.ok()) spdlog::warn("node {}: report: {}", node_, std::string(status.message()));
}

}  // namespace xfer
