#include "common/plan/spec_plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/placement.h"

namespace xfer {
namespace {

absl::StatusOr<const Manifest*> AddManifest(const absl::StatusOr<RankLayout>& layout,
                                            SpecPlanInput& out) {
  if (!layout.ok()) return layout.status();
  XFER_ASSIGN_OR_RETURN(Placement placement, PlaceContiguously(*layout));
  XFER_ASSIGN_OR_RETURN(Manifest manifest, BuildManifest(*out.tensors, *layout, placement.tensors,
                                                         placement.region_bytes));
  out.manifests.push_back(std::make_unique<Manifest>(std::move(manifest)));
  return out.manifests.back().get();
}

// The GPU, counted over all nodes, on which the first rollout rank stands.
int32_t FirstRolloutGpu(const ModelSpec& spec) {
  const int32_t gpus = spec.gpus_per_node;
  const int32_t train_nodes = (spec.train.world + gpus - 1) / gpus;
  const int32_t rollout_nodes = (spec.rollout.world + gpus - 1) / gpus;
  const bool apart = train_nodes + rollout_nodes <= spec.nodes;
  const bool together = spec.train.world + spec.rollout.world <= spec.nodes * gpus;
  return !apart && together ? spec.train.world : train_nodes * gpus;
}

PlanRank RankAt(RankId id, int32_t gpu, int32_t gpus_per_node) {
  return {id, absl::StrCat("node-", gpu / gpus_per_node), gpu % gpus_per_node};
}

}  // namespace

absl::StatusOr<SpecPlanInput> PlanInputFromSpec(const ModelSpec& spec) {
  XFER_RETURN_IF_ERROR(Validate(spec));
  SpecPlanInput out;
  XFER_ASSIGN_OR_RETURN(TensorTable tensors, BuildTensorTable(spec.config));
  out.tensors = std::make_unique<TensorTable>(std::move(tensors));
  out.input.tensors = out.tensors.get();
  const int32_t gpus = spec.gpus_per_node;
  for (int32_t r = 0; r < spec.train.world; ++r) {
    XFER_ASSIGN_OR_RETURN(const Manifest* manifest,
                          AddManifest(MegatronLayout(spec, *out.tensors, r), out));
    out.input.sources.push_back({RankAt({Role::kTrainer, 0, r}, r, gpus), manifest});
  }
  // Engines are alike, so that they share their manifests.
  std::vector<const Manifest*> of_engine;
  for (int32_t r = 0; r < spec.rollout.gpus_per_engine; ++r) {
    XFER_ASSIGN_OR_RETURN(const Manifest* manifest,
                          AddManifest(SglangLayout(spec, *out.tensors, r), out));
    of_engine.push_back(manifest);
  }
  int32_t gpu = FirstRolloutGpu(spec);
  for (int32_t e = 0; e < spec.rollout.engines(); ++e) {
    for (int32_t r = 0; r < spec.rollout.gpus_per_engine; ++r, ++gpu) {
      out.input.destinations.push_back({RankAt({Role::kRollout, e, r}, gpu, gpus), of_engine[r]});
    }
  }
  for (int32_t node = 0; node <= (gpu - 1) / gpus; ++node) {
    out.input.nics.emplace_back(absl::StrCat("node-", node), gpus);
  }
  return out;
}

}  // namespace xfer
