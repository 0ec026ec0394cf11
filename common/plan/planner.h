// From manifests to a plan. Knows nothing of transports, daemons or frameworks.
#ifndef XFER_COMMON_PLAN_PLANNER_H_
#define XFER_COMMON_PLAN_PLANNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/manifest.h"
#include "common/plan/plan.h"

namespace xfer {

// A rank's manifest and place. `manifest` is borrowed for the call.
struct RankManifest {
  PlanRank rank;
  const Manifest* manifest = nullptr;
};

// Whether ranks that were filled pass bytes on. Such transfers have a rollout rank as their source
// and wait for the transfers that fill it.
enum class FanOut : uint8_t {
  kNone,   // sources fill every destination
  kNode,   // what several ranks of a node need in equal boxes enters it once and is passed on
           // locally
  kRelay,  // kNode, and nodes pass on to others what would make the sources' NICs the bottleneck
};

struct PlanInput {
  uint64_t generation = 0;
  const TensorTable* tensors = nullptr;  // borrowed for the call
  std::vector<RankManifest> sources;
  std::vector<RankManifest> destinations;
  // NICs of each node, for the lower bound and the balance; a node that is not named has one.
  std::vector<std::pair<std::string, int32_t>> nics;
  FanOut fan_out = FanOut::kNone;
};

// Proves that every destination element is covered exactly once by source elements, chooses among
// replicas so that the busiest NIC is as light as can be (a replica on the destination's own node
// costs no NIC and is preferred), and lowers to copies with adjacent runs merged and equal steps
// folded to levels. The result does not depend on the order of `sources` and `destinations`, which
// are sorted by rank id.
//
// FailedPrecondition: a destination box that no source holds (names tensor, box, rank).
// InvalidArgument: two destination pieces of a rank that overlap in memory, types with no
// conversion between them, a piece outside its tensor or region. Cost is linear in pieces (times
// the overlaps of each).
absl::StatusOr<Plan> BuildPlan(const PlanInput& input);

// The least bytes that the busiest NIC must carry for this input whatever the plan: the larger of,
// for every node, distinct bytes that its ranks need and do not have, over its NICs; and all
// distinct bytes that must leave the source nodes, over the NICs that can send them.
uint64_t LowerBound(const PlanInput& input);

// A plan as text for people: ranks, per-pair bytes, transfers with their copies; `max_transfers`
// bounds the list.
std::string Describe(const Plan& plan, const TensorTable& tensors, size_t max_transfers);

}  // namespace xfer

#endif  // XFER_COMMON_PLAN_PLANNER_H_
