// Which ranks of a job stand on which node of a run.
#ifndef XFER_XFERCTL_RUN_NODE_RANKS_H_
#define XFER_XFERCTL_RUN_NODE_RANKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "common/plan/plan.h"

namespace xfer {

struct NodeRanks {
  std::string node;  // "node-0", ...
  std::vector<int32_t> trainers;
  std::vector<RankId> rollout;

  size_t size() const { return trainers.size() + rollout.size(); }
};

// With the profile's own number of nodes (`nodes` 0 or equal to it): where common/plan/spec_plan.h
// puts them, gpus_per_node a node. With another number: trainers first, then rollout ranks, spread
// as evenly as can be. InvalidArgument where there are more nodes than ranks.
absl::StatusOr<std::vector<NodeRanks>> PlaceRanks(const ModelSpec& spec, int32_t nodes);

// Bytes of shared memory that the ranks of these nodes need.
absl::StatusOr<uint64_t> RankBytes(const ModelSpec& spec, const std::vector<NodeRanks>& nodes);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_NODE_RANKS_H_
