#include "common/plan/spec_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/common/plan/plan_world.h"

namespace xfer {
namespace {

ModelSpec Preset(absl::string_view name) {
  absl::StatusOr<ModelSpec> spec = FindPreset(name);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

// The world of a spec, with memory of its own for every rank.
World WorldOf(const SpecPlanInput& from) {
  World world;
  world.tensors = *from.tensors;
  for (const RankManifest& rank : from.input.sources) {
    world.sources.push_back({rank.rank, *rank.manifest, {}});
  }
  for (const RankManifest& rank : from.input.destinations) {
    world.destinations.push_back({rank.rank, *rank.manifest, {}});
  }
  world.nics = from.input.nics;
  return world;
}

// Every preset with narrow layers, planned and, where it is small enough, carried out byte by byte.
TEST(SpecPlan, EveryShrunkenPresetDelivers) {
  int carried_out = 0;
  for (const ModelSpec& preset : Presets()) {
    SCOPED_TRACE(preset.name);
    absl::StatusOr<ModelSpec> small = Shrink(preset);
    ASSERT_TRUE(small.ok()) << small.status();
    // Engines are alike; two show all that there is to see.
    small->rollout.world = std::min(small->rollout.engines(), 2) * small->rollout.gpus_per_engine;
    absl::StatusOr<SpecPlanInput> input = PlanInputFromSpec(*small);
    ASSERT_TRUE(input.ok()) << input.status();
    uint64_t bytes = 0;
    for (const RankManifest& rank : input->input.sources) bytes += rank.manifest->bytes();
    for (const RankManifest& rank : input->input.destinations) bytes += rank.manifest->bytes();
    absl::StatusOr<Plan> plan = BuildPlan(input->input);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GE(plan->stats.ratio(), 1.0);
    uint64_t wanted = 0;
    for (const RankManifest& rank : input->input.destinations) wanted += rank.manifest->bytes();
    EXPECT_EQ(plan->stats.bytes, wanted);
    // Carrying out checks each byte one by one; the larger worlds would take minutes.
    constexpr uint64_t kMaxBytes = 60 << 20;
    if (bytes > kMaxBytes) continue;
    ++carried_out;
    World world = WorldOf(*input);
    world.Fill();
    world.Execute(*plan);
    world.ExpectDelivered();
    if (HasFailure()) return;
  }
  EXPECT_GE(carried_out, 3);
}

TEST(SpecPlan, Qwen3SharesOneNode) {
  absl::StatusOr<SpecPlanInput> input = PlanInputFromSpec(Preset("Qwen3-4B"));
  ASSERT_TRUE(input.ok()) << input.status();
  ASSERT_EQ(input->input.sources.size(), 4u);
  ASSERT_EQ(input->input.destinations.size(), 4u);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(input->input.sources[r].rank.node, "node-0");
    EXPECT_EQ(input->input.sources[r].rank.nic, r);
    EXPECT_EQ(input->input.destinations[r].rank.node, "node-0");
    EXPECT_EQ(input->input.destinations[r].rank.nic, 4 + r);
  }
  absl::StatusOr<Plan> plan = BuildPlan(input->input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stats.wire_bytes, 0u);
  EXPECT_EQ(plan->stats.ratio(), 1.0);
}

// Trainers TP 2 x CP 2, engines of TP 2 on another node: all four trainers send as much.
TEST(SpecPlan, Qwen3OverTwoNodesUsesAllTrainerNics) {
  ModelSpec spec = Preset("Qwen3-4B");
  spec.nodes = 2;
  absl::StatusOr<SpecPlanInput> input = PlanInputFromSpec(spec);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->input.destinations[0].rank.node, "node-1");
  absl::StatusOr<Plan> plan = BuildPlan(input->input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<uint64_t> sent = World::WireBytesBySource(*plan);
  ASSERT_EQ(sent.size(), 4u);
  const uint64_t mean = std::accumulate(sent.begin(), sent.end(), uint64_t{0}) / 4;
  for (uint64_t bytes : sent) {
    EXPECT_GT(bytes, mean * 0.98);
    EXPECT_LT(bytes, mean * 1.02);
  }
  // A fused qkv shard folds: no transfer of this model needs more than one copy.
  for (const Transfer& transfer : plan->transfers) EXPECT_EQ(transfer.copies.size(), 1u);
}

TEST(SpecPlan, RefusesAnInvalidSpec) {
  ModelSpec spec = Preset("Qwen3-4B");
  spec.train.tp = 3;
  EXPECT_FALSE(PlanInputFromSpec(spec).ok());
}

}  // namespace
}  // namespace xfer
