#include "common/plan/planner.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/planner_internal.h"

namespace xfer {
namespace {

using plan_internal::Ranks;

// Indices of pieces are 32 bits wide throughout.
absl::Status CheckCounts(const Ranks& ranks) {
  constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max() / 2;
  uint64_t pieces = 0;
  for (const Manifest* manifest : ranks.manifests) pieces += manifest->pieces.size();
  if (pieces <= kMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the manifests have ", pieces, " pieces together; a plan takes at most ", kMax));
}

absl::Status CheckSources(const TensorTable& tensors, const Ranks& ranks) {
  for (int32_t r = 0; r < ranks.sources; ++r) {
    XFER_RETURN_IF_ERROR(plan_internal::CheckPieces(tensors, ranks.ranks[r], *ranks.manifests[r]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> BuildPlan(const PlanInput& input) {
  XFER_ASSIGN_OR_RETURN(Ranks ranks, plan_internal::ResolveRanks(input));
  XFER_RETURN_IF_ERROR(CheckCounts(ranks));
  XFER_RETURN_IF_ERROR(CheckSources(*input.tensors, ranks));
  plan_internal::SourceIndex index = plan_internal::SourceIndex::Build(*input.tensors, ranks);
  XFER_ASSIGN_OR_RETURN(plan_internal::Units units,
                        plan_internal::BuildUnits(*input.tensors, ranks, index));
  const std::vector<plan_internal::Part> parts =
      plan_internal::Choose(ranks, index, units, input.fan_out);
  Plan plan;
  plan.generation = input.generation;
  plan.transfers = plan_internal::Lower(ranks, index, units, parts);
  plan_internal::FillStats(ranks, plan);
  plan.stats.lower_bound_bytes = plan_internal::LowerBound(*input.tensors, ranks, index);
  plan.ranks = std::move(ranks.ranks);
  return plan;
}

uint64_t LowerBound(const PlanInput& input) {
  absl::StatusOr<Ranks> ranks = plan_internal::ResolveRanks(input);
  if (!ranks.ok()) return 0;
  for (int32_t r = 0; r < ranks->size(); ++r) {
    if (!plan_internal::CheckPieces(*input.tensors, ranks->ranks[r], *ranks->manifests[r]).ok()) {
      return 0;
    }
  }
  const auto index = plan_internal::SourceIndex::Build(*input.tensors, *ranks);
  return plan_internal::LowerBound(*input.tensors, *ranks, index);
}

}  // namespace xfer
