// SyncTask: which engines a failure concerns.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "coordinator/registry/names.h"
#include "coordinator/sync/sync_task.h"

namespace xfer {
namespace {

constexpr size_t kMaxFailuresKept = 8;
constexpr size_t kMaxMessage = 1024;

absl::Status FailureOf(const v1::Outcome& outcome, const std::string& context) {
  v1::Outcome shortened = outcome;
  shortened.set_message(Shorten(outcome.message(), kMaxMessage));
  return Annotate(FromOutcome(shortened), context);
}

}  // namespace

void SyncTask::FailEngine(int32_t engine, const absl::Status& status) {
  auto it = engines_.find(engine);
  if (it == engines_.end() || !it->second.live()) return;
  it->second.status = status;
  if (first_failure_.ok()) first_failure_ = status;
  engines_changed_ = true;
  changed_.SignalAll();
}

void SyncTask::FailAll(const absl::Status& status) {
  for (auto& [e, engine] : engines_) FailEngine(e, status);
}

SyncTask::EngineSet SyncTask::LiveEngines() const {
  EngineSet live;
  for (const auto& [e, engine] : engines_) {
    if (engine.live()) live.push_back(e);
  }
  return live;
}

// Whether the step in flight cannot succeed for the engine without this node.
bool SyncTask::DependsOn(int32_t engine, const std::string& node) const {
  if (engines_.at(engine).nodes.contains(node)) return true;
  switch (reached_) {
    case v1::STEP_KIND_COMMIT:
    case v1::STEP_KIND_RESUME:
      return false;
    case v1::STEP_KIND_TRANSFER:
    case v1::STEP_KIND_CONNECT: {
      auto it = plan_->engine_nodes.find(engine);
      return it != plan_->engine_nodes.end() && it->second.contains(node);
    }
    default: {
      // A trainer that cannot hold ends the sync, whether or not it is a source.
      auto it = nodes_.find(node);
      return it != nodes_.end() && it->second.has_trainers;
    }
  }
}

void SyncTask::ChargeNode(const std::string& node, const absl::Status& status) {
  for (const auto& [e, engine] : engines_) {
    if (engine.live() && DependsOn(e, node)) FailEngine(e, status);
  }
}

void SyncTask::ChargeRanks(const std::string& node, const v1::StepResult& result, bool& charged) {
  const std::vector<const RankEntry*>& there = nodes_.at(node).ranks;
  for (const v1::RankOutcome& outcome : result.ranks()) {
    if (outcome.outcome().code() == 0) continue;
    const absl::StatusOr<RankId> id = FromProto(outcome.id());
    if (!id.ok() || std::none_of(there.begin(), there.end(),
                                 [&](const RankEntry* rank) { return rank->id == *id; })) {
      continue;  // not a rank of this sync on that node: the node's own outcome counts
    }
    charged = true;
    const absl::Status status =
        FailureOf(outcome.outcome(), absl::StrCat("node ", node, ", ", id->ToString()));
    if (id->role == Role::kRollout) {
      FailEngine(id->engine, status);
    } else if (reached_ <= v1::STEP_KIND_TRANSFER) {
      FailAll(status);
    }
  }
}

void SyncTask::ChargeFailures(const std::string& node, const v1::StepResult& result,
                              bool& charged) {
  for (const v1::TransferFailure& reported : result.failures()) {
    const absl::StatusOr<RankId> destination = FromProto(reported.destination());
    if (!destination.ok() || destination->role != Role::kRollout) continue;
    auto it = engines_.find(destination->engine);
    if (it == engines_.end() || it->second.committed) continue;
    charged = true;
    v1::TransferFailure failure = reported;
    if (failure.tensor().empty()) failure.set_tensor(plan_->names->TensorOf(failure.transfer()));
    failure.mutable_outcome()->set_message(Shorten(failure.outcome().message(), kMaxMessage));
    const absl::StatusOr<RankId> source = FromProto(failure.source());
    const std::string where = absl::StrCat(
        "node ", node, ": tensor ", failure.tensor(), " from ",
        source.ok() ? source->ToString() : "an unnamed source", " on node ", failure.source_node(),
        " to ", destination->ToString(), " on node ", failure.destination_node());
    Engine& engine = it->second;
    if (failure.outcome().code() == 0) {  // it is in the list of failures, so it failed
      *failure.mutable_outcome() = ToOutcome(absl::UnknownError("failed for a reason not given"));
    }
    FailEngine(destination->engine, Annotate(FromOutcome(failure.outcome()), where));
    // Both ends of a transfer may report it: it is counted and kept once.
    const bool known = std::any_of(
        engine.failures.begin(), engine.failures.end(),
        [&](const v1::TransferFailure& f) { return f.transfer() == failure.transfer(); });
    if (known) continue;
    ++engine.failure_count;
    engines_changed_ = true;
    if (engine.failures.size() < kMaxFailuresKept) engine.failures.push_back(std::move(failure));
  }
}

// After TRANSFER, every destination rank has been judged by its node, or its engine has failed:
// silence is no proof that bytes are in place.
void SyncTask::RequireVerdicts(const std::string& node, const v1::StepResult& result) {
  std::set<RankId> judged;
  for (const v1::RankOutcome& outcome : result.ranks()) {
    const absl::StatusOr<RankId> id = FromProto(outcome.id());
    if (id.ok()) judged.insert(*id);
  }
  for (const RankEntry* rank : nodes_.at(node).ranks) {
    if (rank->id.role != Role::kRollout || judged.contains(rank->id)) continue;
    FailEngine(rank->id.engine,
               result.outcome().code() != 0
                   ? FailureOf(result.outcome(), absl::StrCat("node ", node))
                   : absl::InternalError(absl::StrCat(
                         "node ", node, " does not say whether the bytes of ", rank->id.ToString(),
                         " are in place; its agent may be of another version")));
  }
}

void SyncTask::Charge(const std::string& node, const v1::StepResult& result) {
  bool charged = false;
  ChargeFailures(node, result, charged);
  ChargeRanks(node, result, charged);
  if (result.outcome().code() != 0 && !charged) {
    ChargeNode(node, FailureOf(result.outcome(), absl::StrCat("node ", node)));
  }
  if (step_ == v1::STEP_KIND_TRANSFER) RequireVerdicts(node, result);
}

std::vector<v1::EngineResult> SyncTask::EngineResults() const {
  std::vector<v1::EngineResult> out;
  for (const auto& [e, engine] : engines_) {
    v1::EngineResult result;
    result.set_engine(e);
    result.set_committed(engine.committed);
    *result.mutable_outcome() = ToOutcome(engine.status);
    for (const v1::TransferFailure& failure : engine.failures) *result.add_failures() = failure;
    result.set_failure_count(engine.failure_count);
    out.push_back(std::move(result));
  }
  return out;
}

}  // namespace xfer
