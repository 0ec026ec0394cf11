#include "xferctl/run/node_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/plan/spec_plan.h"

namespace xfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<size_t> Sizes(const std::vector<NodeRanks>& nodes) {
  std::vector<size_t> sizes;
  for (const NodeRanks& node : nodes) sizes.push_back(node.size());
  return sizes;
}

TEST(PlaceRanksTest, SpreadsOverAnotherNumberOfNodes) {
  const ModelSpec spec = *FindPreset("Qwen3-4B");  // 4 trainers, 2 engines of 2
  const auto two = PlaceRanks(spec, 2);
  ASSERT_TRUE(two.ok());
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[0].node, "node-0");
  EXPECT_THAT((*two)[0].trainers, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE((*two)[0].rollout.empty());
  EXPECT_THAT((*two)[1].rollout,
              ElementsAre(RankId{Role::kRollout, 0, 0}, RankId{Role::kRollout, 0, 1},
                          RankId{Role::kRollout, 1, 0}, RankId{Role::kRollout, 1, 1}));
  EXPECT_THAT(Sizes(*PlaceRanks(spec, 3)), ElementsAre(2, 3, 3));
  EXPECT_THAT(Sizes(*PlaceRanks(spec, 5)), ElementsAre(1, 2, 1, 2, 2));  // none stays empty
  EXPECT_THAT(Sizes(*PlaceRanks(spec, 8)), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(PlaceRanksTest, RefusesMoreNodesThanRanks) {
  const ModelSpec spec = *FindPreset("Qwen3-4B");
  EXPECT_THAT(std::string(PlaceRanks(spec, 9).status().message()),
              HasSubstr("9 nodes for the 8 ranks"));
  EXPECT_FALSE(PlaceRanks(spec, -1).ok());
}

// The profile's own placement must be the planner's, or its figures say nothing about the run.
TEST(PlaceRanksTest, ProfilesAreWhereThePlannerPutsThem) {
  for (const char* name : {"Qwen3-4B", "GLM-4.7-Flash"}) {
    const ModelSpec spec = *FindPreset(name);
    const auto input = PlanInputFromSpec(spec);
    ASSERT_TRUE(input.ok()) << input.status();
    std::map<std::string, size_t> expected;
    for (const RankManifest& rank : input->input.sources) ++expected[rank.rank.node];
    for (const RankManifest& rank : input->input.destinations) ++expected[rank.rank.node];
    std::map<std::string, size_t> placed;
    const auto nodes = PlaceRanks(spec, 0);
    ASSERT_TRUE(nodes.ok());
    for (const NodeRanks& node : *nodes) placed[node.node] = node.size();
    EXPECT_EQ(placed, expected) << name;
    EXPECT_EQ(Sizes(*PlaceRanks(spec, spec.nodes)), Sizes(*PlaceRanks(spec, 0)));
  }
}

TEST(RankBytesTest, CountsEveryRankOnce) {
  ModelSpec spec = *FindPreset("Qwen3-4B");
  spec.config = *KeepLayers(spec.config, 4);
  const auto nodes = PlaceRanks(spec, 2);
  const uint64_t all = *RankBytes(spec, *nodes);
  const uint64_t trainers = *RankBytes(spec, {(*nodes)[0]});
  const uint64_t rollout = *RankBytes(spec, {(*nodes)[1]});
  EXPECT_EQ(all, trainers + rollout);
  // Two copies each of a model of about 1.58 GB (embeddings and 4 layers).
  const TensorTable table = *BuildTensorTable(spec.config);
  EXPECT_NEAR(static_cast<double>(rollout), 2.0 * table.total_bytes(), 0.05 * table.total_bytes());
}

}  // namespace
}  // namespace xfer
