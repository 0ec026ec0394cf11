#include "client/rank_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

constexpr absl::Duration kUnregisterTimeout = absl::Seconds(5);

void Unregister(v1::LocalAgent::StubInterface& stub, uint64_t registration_id) {
  grpc::ClientContext context;
  SetDeadline(context, kUnregisterTimeout);
  v1::UnregisterRankRequest request;
  request.set_registration_id(registration_id);
  v1::UnregisterRankReply reply;
  // The end of the session unregisters as well, so an agent that does not answer changes nothing.
  (void)stub.UnregisterRank(&context, request, &reply);
}

}  // namespace

RankSession::RankSession(std::shared_ptr<v1::LocalAgent::StubInterface> stub,
                         const RankOptions& options, uint64_t registration_id)
    : stub_(std::move(stub)),
      name_(options.id.ToString()),
      registration_id_(registration_id),
      on_hook_(options.on_hook),
      on_lost_(options.on_lost) {}

absl::StatusOr<std::unique_ptr<RankSession>> RankSession::Open(
    std::shared_ptr<v1::LocalAgent::StubInterface> stub, const RankOptions& options,
    uint64_t registration_id, absl::Time deadline) {
  std::unique_ptr<RankSession> session(new RankSession(std::move(stub), options, registration_id));
  session->stream_ = session->stub_->RankSession(&session->context_);
  session->reader_ = std::thread(&RankSession::ReadLoop, session.get());
  v1::RankEvent event;
  event.mutable_attach()->set_registration_id(registration_id);
  for (Hook hook : options.hooks) event.mutable_attach()->add_hooks(static_cast<v1::Hook>(hook));
  (void)session->Write(event);  // if it fails, the stream ends, and its end tells more
  const bool answered =
      session->attached_or_over_.WaitForNotificationWithTimeout(deadline - absl::Now());
  absl::MutexLock lock(&session->mu_);
  if (session->attached_) return session;
  session->leaving_ = true;
  if (!answered)
    return absl::DeadlineExceededError("the agent did not open the rank's session in time");
  if (session->end_.ok())
    return absl::UnavailableError("the agent ended the rank's session at once");
  return Annotate(session->end_, "the rank's session");
}

RankSession::~RankSession() {
  {
    absl::MutexLock lock(&mu_);
    leaving_ = true;
  }
  Unregister(*stub_, registration_id_);
  context_.TryCancel();
  if (reader_.joinable()) reader_.join();
}

absl::Status RankSession::ReportReady(int64_t version) {
  v1::RankEvent event;
  event.mutable_ready()->set_version(version);
  return Write(event);
}

absl::Status RankSession::ReportVerdict(int64_t version, const absl::Status& verdict) {
  v1::RankEvent event;
  event.mutable_verdict()->set_version(version);
  *event.mutable_verdict()->mutable_outcome() = ToOutcome(verdict);
  return Write(event);
}

absl::Status RankSession::Write(const v1::RankEvent& event) {
  absl::MutexLock lock(&mu_);
  if (over_) {
    return absl::UnavailableError(absl::StrCat(name_, " has lost its agent: ", end_.message()));
  }
  if (!stream_->Write(event)) {
    return absl::UnavailableError(absl::StrCat(name_, " has lost its agent"));
  }
  return absl::OkStatus();
}

void RankSession::RunHook(const v1::HookCall& call) {
  HookCall hook;
  hook.hook = static_cast<Hook>(call.hook());
  hook.sync_id = call.sync_id();
  hook.version = call.version();
  hook.deadline = absl::Now() + absl::Milliseconds(std::max<int64_t>(call.deadline_ms(), 0));
  hook.outcome = FromOutcome(call.outcome());
  v1::RankEvent event;
  event.mutable_hook_done()->set_call(call.call());
  const absl::Status status =
      on_hook_ ? on_hook_(hook) : absl::UnimplementedError(absl::StrCat(name_, " has no hooks"));
  *event.mutable_hook_done()->mutable_outcome() = ToOutcome(status);
  (void)Write(event);  // a stream that has ended is noticed by the read that follows
}

void RankSession::ReadLoop() {
  v1::RankCommand command;
  while (stream_->Read(&command)) {
    if (command.has_attached()) {
      {
        absl::MutexLock lock(&mu_);
        attached_ = true;
      }
      if (!attached_or_over_.HasBeenNotified()) attached_or_over_.Notify();
    } else if (command.has_hook_call()) {
      RunHook(command.hook_call());
    }
  }
  bool tell = false;
  absl::Status end;
  {
    // Holding the mutex keeps writes apart from Finish(); a write that is running fails as the
    // stream ends.
    absl::MutexLock lock(&mu_);
    end = FromGrpc(stream_->Finish());
    if (end.ok()) end = absl::UnavailableError("the agent ended the session");
    over_ = true;
    end_ = end;
    tell = attached_ && !leaving_;
  }
  if (!attached_or_over_.HasBeenNotified()) attached_or_over_.Notify();
  if (tell && on_lost_) on_lost_(end);
}

}  // namespace xfer
