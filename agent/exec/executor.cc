#include "agent/exec/executor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

constexpr size_t kPlansKept = 4;
constexpr size_t kMaxStepThreads = 64;
constexpr size_t kMaxBackgroundThreads = 32;
constexpr absl::Duration kReapInterval = absl::Seconds(1);
constexpr absl::Duration kDefaultStepTime = absl::Seconds(60);

size_t SenderThreads(int wanted) {
  if (wanted > 0) return static_cast<size_t>(wanted);
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 4, 16);
}

absl::Duration TimeOf(const v1::Step& step) {
  return step.deadline_ms() > 0 ? absl::Milliseconds(step.deadline_ms()) : kDefaultStepTime;
}

// The answer has to be there before the deadline, so work ends a little earlier.
absl::Duration Margin(absl::Duration time) {
  return std::clamp(time / 20, absl::Milliseconds(5), absl::Milliseconds(500));
}

}  // namespace

absl::string_view Name(HookKind hook) {
  switch (hook) {
    case HookKind::kHold:
      return "hold";
    case HookKind::kRelease:
      return "release";
    case HookKind::kPause:
      return "pause";
    case HookKind::kPostLoad:
      return "post-load";
    case HookKind::kResume:
      return "resume";
  }
  return "unknown";
}

SyncExecutor::SyncExecutor(ExecutorOptions options, RankTable* ranks, ReceiveState* receive,
                           EndpointPool* endpoints, HookCaller* hooks, CoordinatorLink* link)
    : options_(std::move(options)),
      ranks_(ranks),
      receive_(receive),
      endpoints_(endpoints),
      hooks_(hooks),
      link_(link),
      plans_(kPlansKept),
      senders_(SenderThreads(options_.threads)),
      background_(kMaxBackgroundThreads),
      steps_(kMaxStepThreads),
      reaper_(&SyncExecutor::Reap, this) {}

SyncExecutor::~SyncExecutor() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    stop_changed_.SignalAll();
  }
  AbandonAll(absl::CancelledError(absl::StrCat("the agent of node ", options_.node, " stops")));
  reaper_.join();
}

void SyncExecutor::Answer(v1::StepResult result) {
  v1::AgentEvent event;
  *event.mutable_step_result() = std::move(result);
  link_->Send(std::move(event));
}

absl::StatusOr<SyncExecutor::RunPtr> SyncExecutor::RunOf(const v1::Step& step) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::CancelledError("the agent stops");
  auto found = runs_.find(step.sync_id());
  if (found != runs_.end()) return found->second;
  if (step.kind() == v1::STEP_KIND_COMMIT || step.kind() == v1::STEP_KIND_RESUME) {
    return absl::FailedPreconditionError(absl::StrCat(
        "sync ", step.sync_id(), " is not known on node ", options_.node, ": it has ended here"));
  }
  auto run = std::make_shared<SyncRun>(step.sync_id(), step.job(), step.version());
  runs_[step.sync_id()] = run;
  return run;
}

void SyncExecutor::Refuse(const v1::Step& step, const absl::Status& status) {
  v1::StepResult result;
  result.set_sync_id(step.sync_id());
  result.set_kind(step.kind());
  *result.mutable_outcome() = ToOutcome(status);
  Answer(std::move(result));
}

void SyncExecutor::HandleStep(v1::Step step) {
  const absl::Time now = absl::Now();
  const absl::Duration time = TimeOf(step);
  absl::StatusOr<RunPtr> found = RunOf(step);
  if (!found.ok()) return Refuse(step, found.status());
  const RunPtr run = *std::move(found);
  // A coordinator that has lost our answer with its connection asks again.
  if (auto answered = run->Answered(step.kind())) return Answer(*std::move(answered));
  const SyncRun::Timed timed{std::move(step), now + time - Margin(time)};
  absl::StatusOr<bool> go = run->BeginStep(timed, now + time + options_.orphan_grace);
  if (!go.ok()) return Refuse(timed.step, go.status());
  if (!*go) {
    receive_->End(run->sync_id());
    return;
  }
  steps_.Submit([this, run, timed] { Execute(run, timed.step, timed.deadline); });
}

v1::StepResult SyncExecutor::RunStep(const RunPtr& run, const v1::Step& step, absl::Time deadline) {
  v1::StepResult result;
  result.set_sync_id(step.sync_id());
  result.set_kind(step.kind());
  switch (step.kind()) {
    case v1::STEP_KIND_CONNECT:
      *result.mutable_outcome() = ToOutcome(Connect(*run, step, deadline));
      break;
    case v1::STEP_KIND_PAUSE:
      Pause(*run, step, deadline, result);
      break;
    case v1::STEP_KIND_TRANSFER:
      TransferAll(run, step, deadline, result);
      break;
    case v1::STEP_KIND_COMMIT:
      Commit(*run, step, deadline, result);
      break;
    case v1::STEP_KIND_RESUME:
      Resume(*run, step, deadline, result);
      break;
    default:
      *result.mutable_outcome() = ToOutcome(absl::UnimplementedError(
          absl::StrCat("step kind ", static_cast<int>(step.kind()), " is unknown to this agent")));
  }
  return result;
}

void SyncExecutor::Execute(const RunPtr& run, const v1::Step& step, absl::Time deadline) {
  const absl::Time start = absl::Now();
  v1::StepResult result = RunStep(run, step, deadline);
  if (result.outcome().code() != 0) {
    spdlog::warn("sync {} {} failed: {}", step.sync_id(), v1::StepKind_Name(step.kind()),
                 result.outcome().message());
  } else {
    spdlog::debug("sync {} {} took {}", step.sync_id(), v1::StepKind_Name(step.kind()),
                  absl::FormatDuration(absl::Now() - start));
  }
  const SyncRun::Next next = run->EndStep(result);
  Answer(std::move(result));
  if (next.clean_up) {
    if (next.step.has_value()) Refuse(next.step->step, run->stop_reason());
    CleanUp(run);
  } else if (next.step.has_value()) {
    Execute(run, next.step->step, next.step->deadline);
  } else if (step.kind() == v1::STEP_KIND_RESUME) {
    background_.Submit([this, run] { ReportTimings(*run); });
  }
}

void SyncExecutor::HandleEndSync(const v1::EndSync& end) {
  RunPtr run;
  {
    absl::MutexLock lock(&mu_);
    auto found = runs_.find(end.sync_id());
    if (found == runs_.end()) return;
    run = found->second;
  }
  EndRun(run, end.reason().empty()
                  ? absl::CancelledError(absl::StrCat("sync ", end.sync_id(), " is over"))
                  : absl::CancelledError(
                        absl::StrCat("sync ", end.sync_id(), " was ended: ", end.reason())));
}

void SyncExecutor::EndRun(const RunPtr& run, const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    runs_.erase(run->sync_id());
  }
  const bool clean_up = run->End(reason);
  receive_->End(run->sync_id());
  if (clean_up) CleanUp(run);
}

// No step is running and none will. Does not block.
void SyncExecutor::CleanUp(const RunPtr& run) {
  LetGo(*run, run->stop_reason());
  for (PeerRoute& route : run->setup.routes) {
    for (PeerRoute::Lane& lane : route.lanes) {
      if (lane.endpoint == nullptr) continue;
      endpoints_->Keep(route.peer, *route.transport, std::move(lane.endpoint));
    }
  }
}

std::vector<SyncExecutor::RunPtr> SyncExecutor::Runs() {
  absl::MutexLock lock(&mu_);
  std::vector<RunPtr> all;
  for (const auto& [id, run] : runs_) all.push_back(run);
  return all;
}

void SyncExecutor::SessionBroken(const absl::Status& reason) {
  for (const RunPtr& run : Runs()) {
    run->Interrupt(reason);
    receive_->End(run->sync_id());
  }
}

void SyncExecutor::AbandonAll(const absl::Status& reason) {
  for (const RunPtr& run : Runs()) {
    spdlog::warn("sync {} is given up: {}", run->sync_id(), std::string(reason.message()));
    EndRun(run, reason);
  }
}

void SyncExecutor::RankGone(const LocalRank& rank) {
  for (const RunPtr& run : Runs()) run->RankGone(rank);
}

void SyncExecutor::Reap() {
  while (true) {
    std::vector<RunPtr> expired;
    {
      absl::MutexLock lock(&mu_);
      while (!stopping_ && runs_.empty()) stop_changed_.WaitWithTimeout(&mu_, kReapInterval);
      if (!stopping_) stop_changed_.WaitWithTimeout(&mu_, kReapInterval);
      if (stopping_) return;
      for (const auto& [id, run] : runs_) {
        if (run->Expired(absl::Now())) expired.push_back(run);
      }
    }
    for (const RunPtr& run : expired) {
      spdlog::warn("sync {} is given up: the coordinator has sent no further step", run->sync_id());
      EndRun(run, absl::DeadlineExceededError(absl::StrCat(
                      "sync ", run->sync_id(),
                      ": the coordinator sent no further step in time; was it restarted?")));
    }
  }
}

}  // namespace xfer
