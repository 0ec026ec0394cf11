// Ranks, nodes and NICs of a plan.
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

// Appends `given` sorted by id.
absl::Status Append(const std::vector<RankManifest>& given, absl::string_view side, Ranks& out) {
  std::vector<const RankManifest*> sorted;
  sorted.reserve(given.size());
  for (const RankManifest& rank : given) {
    if (rank.manifest == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(side, " ", rank.rank.id.ToString(), " has no manifest; register it first"));
    }
    if (rank.rank.nic < 0) {
      return absl::InvalidArgumentError(absl::StrCat(side, " ", rank.rank.id.ToString(),
                                                     " has NIC index ", rank.rank.nic,
                                                     "; indices start at 0"));
    }
    sorted.push_back(&rank);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const RankManifest* a, const RankManifest* b) { return a->rank.id < b->rank.id; });
  for (const RankManifest* rank : sorted) {
    out.ranks.push_back(rank->rank);
    out.manifests.push_back(rank->manifest);
  }
  return absl::OkStatus();
}

absl::Status CheckDistinct(const std::vector<PlanRank>& ranks) {
  std::vector<RankId> ids;
  ids.reserve(ranks.size());
  for (const PlanRank& rank : ranks) ids.push_back(rank.id);
  std::sort(ids.begin(), ids.end());
  auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(twice->ToString(), " is given twice; a rank is one source or one destination"));
}

}  // namespace

absl::StatusOr<Ranks> ResolveRanks(const PlanInput& input) {
  if (input.tensors == nullptr) {
    return absl::InvalidArgumentError("plan input has no tensor table");
  }
  Ranks out;
  out.ranks.reserve(input.sources.size() + input.destinations.size());
  XFER_RETURN_IF_ERROR(Append(input.sources, "source", out));
  out.sources = out.size();
  XFER_RETURN_IF_ERROR(Append(input.destinations, "destination", out));
  XFER_RETURN_IF_ERROR(CheckDistinct(out.ranks));

  struct Node {
    int32_t nics = 1;
    int32_t index = 0;
    int32_t first_nic = 0;
  };
  std::map<std::string, Node> nodes;
  for (const PlanRank& rank : out.ranks) {
    Node& node = nodes[rank.node];
    node.nics = std::max(node.nics, rank.nic + 1);
  }
  for (const auto& [name, nics] : input.nics) {
    auto it = nodes.find(name);
    if (it != nodes.end()) it->second.nics = std::max(it->second.nics, nics);
  }
  for (auto& [name, node] : nodes) {
    node.index = out.nodes();
    node.first_nic = out.nics;
    out.nics_of_node.push_back(node.nics);
    out.nics += node.nics;
  }
  for (const PlanRank& rank : out.ranks) {
    const Node& node = nodes.find(rank.node)->second;
    out.node.push_back(node.index);
    out.nic.push_back(node.first_nic + rank.nic);
  }
  return out;
}

}  // namespace xfer::plan_internal
