#include "xferctl/run/node_ranks.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/placement.h"

namespace xfer {
namespace {

std::vector<RankId> AllRanks(const ModelSpec& spec) {
  std::vector<RankId> ranks;
  for (int32_t r = 0; r < spec.train.world; ++r) ranks.push_back({Role::kTrainer, 0, r});
  for (int32_t e = 0; e < spec.rollout.engines(); ++e) {
    for (int32_t r = 0; r < spec.rollout.gpus_per_engine; ++r)
      ranks.push_back({Role::kRollout, e, r});
  }
  return ranks;
}

void Put(NodeRanks& node, const RankId& id) {
  if (id.role == Role::kTrainer) {
    node.trainers.push_back(id.rank);
  } else {
    node.rollout.push_back(id);
  }
}

// The GPU, counted over all nodes, of every rank; rollout ranks begin on a node of their own where
// the profile has nodes enough, and behind the last trainer where it has not.
std::vector<int32_t> ProfileGpus(const ModelSpec& spec, size_t ranks) {
  const int32_t gpus = spec.gpus_per_node;
  const int32_t train_nodes = (spec.train.world + gpus - 1) / gpus;
  const int32_t rollout_nodes = (spec.rollout.world + gpus - 1) / gpus;
  const bool together = train_nodes + rollout_nodes > spec.nodes &&
                        spec.train.world + spec.rollout.world <= spec.nodes * gpus;
  int32_t gpu = 0;
  std::vector<int32_t> out;
  for (size_t i = 0; i < ranks; ++i, ++gpu) {
    if (!together && i == static_cast<size_t>(spec.train.world)) gpu = train_nodes * gpus;
    out.push_back(gpu);
  }
  return out;
}

absl::StatusOr<uint64_t> LayoutBytes(const absl::StatusOr<RankLayout>& layout) {
  if (!layout.ok()) return layout.status();
  XFER_ASSIGN_OR_RETURN(const Placement placement, PlaceContiguously(*layout));
  return placement.region_bytes.front();
}

}  // namespace

absl::StatusOr<std::vector<NodeRanks>> PlaceRanks(const ModelSpec& spec, int32_t nodes) {
  const std::vector<RankId> ranks = AllRanks(spec);
  std::vector<NodeRanks> placed;
  const auto node_at = [&placed](size_t i) -> NodeRanks& {
    while (placed.size() <= i) placed.push_back({absl::StrCat("node-", placed.size())});
    return placed[i];
  };
  if (nodes == 0 || nodes == spec.nodes) {
    const std::vector<int32_t> gpus = ProfileGpus(spec, ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) Put(node_at(gpus[i] / spec.gpus_per_node), ranks[i]);
    return placed;
  }
  if (nodes < 1 || static_cast<size_t>(nodes) > ranks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(nodes, " nodes for the ", ranks.size(),
                                                   " ranks of ", spec.name, "; it must be 1 to ",
                                                   ranks.size()));
  }
  for (size_t node = 0, next = 0; node < static_cast<size_t>(nodes); ++node) {
    const size_t end = ranks.size() * (node + 1) / nodes;
    for (; next < end; ++next) Put(node_at(node), ranks[next]);
  }
  return placed;
}

absl::StatusOr<uint64_t> RankBytes(const ModelSpec& spec, const std::vector<NodeRanks>& nodes) {
  XFER_ASSIGN_OR_RETURN(const TensorTable table, BuildTensorTable(spec.config));
  // Engines are alike.
  std::vector<std::optional<uint64_t>> of_engine(spec.rollout.gpus_per_engine);
  uint64_t total = 0;
  for (const NodeRanks& node : nodes) {
    for (int32_t rank : node.trainers) {
      XFER_ASSIGN_OR_RETURN(const uint64_t bytes, LayoutBytes(MegatronLayout(spec, table, rank)));
      total += bytes;
    }
    for (const RankId& id : node.rollout) {
      std::optional<uint64_t>& bytes = of_engine[id.rank];
      if (!bytes.has_value()) {
        XFER_ASSIGN_OR_RETURN(bytes, LayoutBytes(SglangLayout(spec, table, id.rank)));
      }
      total += *bytes;
    }
  }
  return total;
}

}  // namespace xfer
