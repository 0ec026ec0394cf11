// The input of a plan for a model of the registry, without any rank running.
#ifndef XFER_COMMON_PLAN_SPEC_PLAN_H_
#define XFER_COMMON_PLAN_SPEC_PLAN_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/manifest.h"
#include "common/model/model.h"
#include "common/plan/planner.h"

namespace xfer {

// A PlanInput with all that it borrows. Movable; `input` stays valid as long as this lives.
struct SpecPlanInput {
  std::unique_ptr<TensorTable> tensors;
  std::vector<std::unique_ptr<Manifest>> manifests;  // one a trainer, one a rank number of engines
  PlanInput input;
};

// Manifests for every training rank (Megatron) and every rollout rank (sglang) of the spec, each
// with its tensors placed contiguously in one region.
//
// Nodes are named "node-0", "node-1", ...: trainers fill the first ones, `gpus_per_node` each,
// rollout ranks follow on nodes of their own. Where that takes more than `spec.nodes` but all ranks
// fit the nodes' GPUs, rollout ranks start on the GPU behind the last trainer. A rank's NIC has the
// index of its GPU, and a node has `gpus_per_node` NICs.
//
// InvalidArgument where the spec is not valid.
absl::StatusOr<SpecPlanInput> PlanInputFromSpec(const ModelSpec& spec);

}  // namespace xfer

#endif  // XFER_COMMON_PLAN_SPEC_PLAN_H_
