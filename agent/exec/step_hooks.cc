// PAUSE, COMMIT and RESUME: the steps that call the ranks' hooks.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "agent/exec/executor.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

HookKind FirstHook(const RankPin& rank) {
  return rank->info().id.role == Role::kTrainer ? HookKind::kHold : HookKind::kPause;
}
HookKind LastHook(const RankPin& rank) {
  return rank->info().id.role == Role::kTrainer ? HookKind::kRelease : HookKind::kResume;
}

HookOrder OrderOf(const SyncRun& run, const RankPin& rank, HookKind hook, absl::Time deadline) {
  HookOrder order;
  order.registration_id = rank->registration_id();
  order.hook = hook;
  order.sync_id = run.sync_id();
  order.version = run.version();
  order.deadline = deadline;
  return order;
}

// The node's outcome is its first failure.
void FillRanks(const std::vector<std::pair<RankId, absl::Status>>& failed, v1::StepResult& result) {
  for (const auto& [id, status] : failed) {
    v1::RankOutcome* rank = result.add_ranks();
    *rank->mutable_id() = ToProto(id);
    *rank->mutable_outcome() = ToOutcome(status);
    if (result.outcome().code() == 0) *result.mutable_outcome() = ToOutcome(status);
  }
}

}  // namespace

absl::StatusOr<RankPin> SyncExecutor::PinOf(const SyncRun& run, const v1::RankId& id) const {
  XFER_ASSIGN_OR_RETURN(const RankId rank, FromProto(id));
  for (const RankPin& pin : run.setup.pins) {
    if (pin == nullptr || pin->info().id != rank) continue;
    if (!pin->gone()) return pin;
    return absl::FailedPreconditionError(absl::StrCat(rank.ToString(), " (node ", options_.node,
                                                      ", process ", pin->info().pid, ") has gone"));
  }
  return absl::NotFoundError(absl::StrCat(rank.ToString(), " is not part of sync ", run.sync_id(),
                                          " on node ", options_.node));
}

std::vector<RankPin> SyncExecutor::PinsOf(const SyncRun& run, const v1::Step& step,
                                          std::vector<RankStatus>& failed) const {
  std::vector<RankPin> pins;
  for (const v1::RankId& id : step.ranks()) {
    absl::StatusOr<RankPin> pin = PinOf(run, id);
    if (pin.ok()) {
      pins.push_back(*std::move(pin));
      continue;
    }
    RankId rank{static_cast<Role>(id.role()), id.engine(), id.rank()};
    failed.emplace_back(rank, pin.status());
  }
  return pins;
}

void SyncExecutor::CallHooks(SyncRun& run, const std::vector<HookOrder>& orders,
                             const std::vector<RankPin>& ranks, absl::Time deadline,
                             std::vector<RankStatus>& failed) {
  struct Call {
    std::atomic<bool> done{false};
    absl::Status status;  // written before `done`
  };
  // Shared with callbacks that come too late.
  auto calls = std::make_shared<std::vector<Call>>(orders.size());
  for (size_t i = 0; i < orders.size(); ++i) {
    hooks_->Call(orders[i], [calls, i, self = run.shared_from_this()](absl::Status status) {
      (*calls)[i].status = std::move(status);
      (*calls)[i].done.store(true, std::memory_order_release);
      self->Changed();
    });
  }
  run.WaitFor(
      [&] {
        return std::all_of(calls->begin(), calls->end(),
                           [](const Call& call) { return call.done.load(); });
      },
      deadline);
  for (size_t i = 0; i < orders.size(); ++i) {
    const std::string what =
        absl::StrCat("the ", Name(orders[i].hook), " hook of ", ranks[i]->info().id.ToString(),
                     " (node ", options_.node, ", process ", ranks[i]->info().pid, ")");
    absl::Status status;
    if ((*calls)[i].done.load(std::memory_order_acquire)) {
      status = Annotate((*calls)[i].status, what);
    } else if (run.stopped()) {
      status = run.stop_reason();
    } else {
      status = absl::DeadlineExceededError(
          absl::StrCat(what, " did not answer in time; is that process stuck?"));
    }
    if (!status.ok()) failed.emplace_back(ranks[i]->info().id, std::move(status));
  }
}

absl::Status SyncExecutor::BeginReceive(SyncRun& run, absl::Time deadline) {
  if (run.receiving) return absl::OkStatus();
  XFER_RETURN_IF_ERROR(receive_->Begin(run.receive, deadline));
  run.receiving = true;
  // The end of the sync may have come in between, and did not find it then.
  if (run.stopped()) {
    receive_->End(run.sync_id());
    return run.stop_reason();
  }
  return absl::OkStatus();
}

void SyncExecutor::Pause(SyncRun& run, const v1::Step& step, absl::Time deadline,
                         v1::StepResult& result) {
  absl::Status ready = EnsureConnected(run, step, deadline);
  if (ready.ok()) ready = BeginReceive(run, deadline);
  if (!ready.ok()) {
    *result.mutable_outcome() = ToOutcome(ready);
    return;
  }
  std::vector<RankStatus> failed;
  const std::vector<RankPin> pins = PinsOf(run, step, failed);
  std::vector<HookOrder> orders;
  for (const RankPin& pin : pins) {
    orders.push_back(OrderOf(run, pin, FirstHook(pin), deadline));
    // Also those that fail: they may have paused and not got round to saying so.
    run.held.push_back(pin);
  }
  CallHooks(run, orders, pins, deadline, failed);
  FillRanks(failed, result);
}

absl::Status SyncExecutor::CloseReceive(SyncRun& run, absl::Time deadline) {
  run.receive->Close();
  // A connection that broke may still be at its last bytes.
  if (run.WaitFor([&] { return run.receive->writers() == 0; }, deadline)) return absl::OkStatus();
  if (run.stopped()) return run.stop_reason();
  return absl::DeadlineExceededError(absl::StrCat("a broken connection of sync ", run.sync_id(),
                                                  " may still write to ranks of node ",
                                                  options_.node));
}

void SyncExecutor::Commit(SyncRun& run, const v1::Step& step, absl::Time deadline,
                          v1::StepResult& result) {
  absl::Status closed =
      run.receive == nullptr
          ? absl::FailedPreconditionError(
                absl::StrCat("sync ", run.sync_id(), " was not connected on node ", options_.node))
          : CloseReceive(run, deadline);
  if (!closed.ok()) {
    *result.mutable_outcome() = ToOutcome(closed);
    return;
  }
  std::vector<RankStatus> failed;
  std::vector<RankPin> pins;
  std::vector<HookOrder> orders;
  const PlanPart& part = *run.setup.part;
  for (const RankPin& pin : PinsOf(run, step, failed)) {
    // Whoever says commit, a rank without all of its bytes does not take the version.
    absl::Status complete;
    for (size_t i = 0; i < part.ranks.size(); ++i) {
      if (run.setup.pins[i] == pin) {
        complete.Update(run.receive->Complete(static_cast<int32_t>(i)));
      }
    }
    if (!complete.ok()) {
      failed.emplace_back(pin->info().id, complete);
      continue;
    }
    pins.push_back(pin);
    orders.push_back(OrderOf(run, pin, HookKind::kPostLoad, deadline));
  }
  CallHooks(run, orders, pins, deadline, failed);
  FillRanks(failed, result);
}

void SyncExecutor::Resume(SyncRun& run, const v1::Step& step, absl::Time deadline,
                          v1::StepResult& result) {
  absl::flat_hash_set<std::pair<int, int64_t>> dirty;
  const auto key = [](const v1::RankId& id) {
    return std::pair<int, int64_t>(id.role(), (int64_t{id.engine()} << 32) | id.rank());
  };
  for (const v1::RankId& id : step.failed()) dirty.insert(key(id));
  std::vector<RankStatus> failed;
  std::vector<RankPin> pins;
  std::vector<HookOrder> orders;
  for (const RankPin& pin : PinsOf(run, step, failed)) {
    // A rank that no hook has held back has nothing to be let go of.
    auto held = std::find(run.held.begin(), run.held.end(), pin);
    if (held == run.held.end()) continue;
    run.held.erase(held);
    pins.push_back(pin);
    HookOrder& order = orders.emplace_back(OrderOf(run, pin, LastHook(pin), deadline));
    const bool is_dirty = dirty.contains(key(ToProto(pin->info().id)));
    if (step.success() && !is_dirty) continue;
    absl::Status cause;
    for (size_t i = 0; run.failures != nullptr && i < run.setup.pins.size(); ++i) {
      if (run.setup.pins[i] == pin) cause.Update(run.failures->StatusOf(static_cast<int32_t>(i)));
    }
    order.outcome = absl::Status(
        is_dirty ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted,
        absl::StrCat("sync ", run.sync_id(), " of version ", run.version(), " failed for ",
                     pin->info().id.ToString(),
                     is_dirty
                         ? "; its weights may be mixed and must not be used until a sync succeeds"
                         : "; its weights are as they were",
                     cause.ok() ? "" : ": ", cause.message()));
  }
  CallHooks(run, orders, pins, deadline, failed);
  FillRanks(failed, result);
}

// Hooks of ranks that were held or paused and that no RESUME has reached. Nobody waits for them.
void SyncExecutor::LetGo(SyncRun& run, const absl::Status& reason) {
  for (const RankPin& pin : run.held) {
    if (pin->gone()) continue;
    HookOrder order = OrderOf(run, pin, LastHook(pin), absl::Now() + absl::Seconds(30));
    order.outcome = reason;
    hooks_->Call(order, [id = pin->info().id, hook = order.hook](absl::Status status) {
      if (!status.ok()) {
        spdlog::warn("the {} hook of {}: {}", std::string(Name(hook)), id.ToString(),
                     std::string(status.message()));
      }
    });
  }
  run.held.clear();
}

}  // namespace xfer
