#include "agent/exec/sync_run.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace xfer {

absl::StatusOr<bool> SyncRun::BeginStep(const Timed& step, absl::Time expires) {
  const bool resume = step.step.kind() == v1::STEP_KIND_RESUME;
  {
    absl::MutexLock lock(&mu_);
    if (ended_ || (interrupted_ && !resume)) return stop_reason_;
    expires_ = expires;
    if (running_ == v1::STEP_KIND_UNSPECIFIED) {
      running_ = step.step.kind();
      return true;
    }
    if (!resume || pending_.has_value() || running_ == v1::STEP_KIND_RESUME) {
      return absl::FailedPreconditionError(
          absl::StrCat("sync ", sync_id_, " is still at its last step on this node"));
    }
    pending_ = step;
  }
  Interrupt(
      absl::CancelledError(absl::StrCat("sync ", sync_id_, ": the coordinator went on to resume")));
  return false;
}

std::optional<v1::StepResult> SyncRun::Answered(v1::StepKind kind) const {
  absl::MutexLock lock(&mu_);
  for (const v1::StepResult& answer : answers_) {
    if (answer.kind() == kind) return answer;
  }
  return std::nullopt;
}

SyncRun::Next SyncRun::EndStep(const v1::StepResult& result) {
  absl::MutexLock lock(&mu_);
  answers_.push_back(result);
  Next next;
  next.clean_up = ended_;
  next.step.swap(pending_);
  const bool go_on = next.step.has_value() && !ended_;
  running_ = go_on ? next.step->step.kind() : v1::STEP_KIND_UNSPECIFIED;
  return next;
}

void SyncRun::StopSendersLocked() {
  if (send_job_ != nullptr && !send_job_->stop.HasBeenNotified()) send_job_->stop.Notify();
}

bool SyncRun::End(const absl::Status& reason) {
  bool idle = false;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return false;
    ended_ = true;
    stop_reason_ = reason;
    idle = running_ == v1::STEP_KIND_UNSPECIFIED;
    StopSendersLocked();
  }
  Changed();
  return idle;
}

void SyncRun::Interrupt(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (ended_ || interrupted_) return;
    interrupted_ = true;
    stop_reason_ = reason;
    StopSendersLocked();
  }
  Changed();
}

bool SyncRun::stopped() const {
  absl::MutexLock lock(&mu_);
  return StoppedLocked();
}

absl::Status SyncRun::stop_reason() const {
  absl::MutexLock lock(&mu_);
  return stop_reason_;
}

bool SyncRun::Expired(absl::Time now) const {
  absl::MutexLock lock(&mu_);
  return running_ == v1::STEP_KIND_UNSPECIFIED && now > expires_;
}

void SyncRun::Changed() {
  std::vector<std::shared_ptr<PeerSender>> woken;
  RunSender run;
  {
    absl::MutexLock lock(&mu_);
    ++epoch_;
    changed_.SignalAll();
    if (parked_.empty()) return;
    woken.swap(parked_);
    run = run_sender_;
  }
  for (std::shared_ptr<PeerSender>& sender : woken) run(std::move(sender));
}

bool SyncRun::WaitFor(absl::FunctionRef<bool()> done, absl::Time limit) {
  absl::MutexLock lock(&mu_);
  while (!done()) {
    if (StoppedLocked()) return false;
    if (changed_.WaitWithDeadline(&mu_, limit)) return done();
  }
  return true;
}

void SyncRun::Prepare(Clock* clock) {
  const auto changed = [weak = weak_from_this()] {
    if (const std::shared_ptr<SyncRun> run = weak.lock()) run->Changed();
  };
  failures = std::make_shared<SyncFailures>(setup.part, changed);
  ledger = std::make_shared<SendLedger>(setup.part);
  SyncReceive::Options options;
  options.key = setup.key;
  options.verify = setup.verify;
  options.part = setup.part;
  options.pins = setup.pins;
  options.failures = failures;
  options.on_change = changed;
  options.clock = clock;
  receive = std::make_shared<SyncReceive>(std::move(options));
  absl::MutexLock lock(&mu_);
  prepared_ = true;
}

void SyncRun::RankGone(const LocalRank& rank) {
  {
    absl::MutexLock lock(&mu_);
    if (!prepared_ || ended_) return;
  }
  const PlanPart& part = *setup.part;
  absl::flat_hash_set<uint32_t> sent;
  for (const SentTransfer& transfer : ledger->Transfers()) sent.insert(transfer.transfer);
  for (size_t i = 0; i < part.ranks.size(); ++i) {
    if (setup.pins[i].get() != &rank) continue;
    const absl::Status cause = absl::UnavailableError(
        absl::StrCat(part.ranks[i].id.ToString(), " (node ", part.ranks[i].node, ", process ",
                     rank.info().pid, ") has gone during the sync"));
    for (uint32_t t = 0; t < part.transfers.size(); ++t) {
      const Transfer& transfer = part.transfers[t].planned;
      const bool here = transfer.destination == static_cast<int32_t>(i);
      if (!here && (transfer.source != static_cast<int32_t>(i) || sent.contains(t))) continue;
      if (failures->Failed(transfer.destination)) continue;
      if (here) {
        failures->FailRank(transfer.destination, cause);
      } else {
        failures->FailTransfer(t, cause);
      }
    }
  }
}

void SyncRun::StartSending(std::shared_ptr<SendJob> job, RunSender run) {
  absl::MutexLock lock(&mu_);
  send_job_ = std::move(job);
  run_sender_ = std::move(run);
  if (ended_ || interrupted_) StopSendersLocked();
}

uint64_t SyncRun::epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

void SyncRun::Park(std::shared_ptr<PeerSender> sender, uint64_t epoch) {
  RunSender run;
  {
    absl::MutexLock lock(&mu_);
    if (epoch_ == epoch) {
      parked_.push_back(std::move(sender));
      return;
    }
    run = run_sender_;
  }
  run(std::move(sender));
}

}  // namespace xfer
