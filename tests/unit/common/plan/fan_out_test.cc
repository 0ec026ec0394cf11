#include <gtest/gtest.h>

#include <set>

#include "tests/unit/common/plan/plan_world.h"

namespace xfer {
namespace {

Plan MustPlan(const World& world) {
  absl::StatusOr<Plan> plan = BuildPlan(world.Input());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// `trainers` that all hold everything, on one node; `nodes` nodes of `ranks` ranks that need
// everything.
World ReplicatedWorld(int trainers, int nodes, int ranks, int64_t rows, FanOut fan_out) {
  World world;
  world.fan_out = fan_out;
  for (int t = 0; t < 3; ++t) {
    world.tensors.Add("w" + std::to_string(t), DType::kU8, {rows, 256});
  }
  world.tensors.Add("norm", DType::kU8, {256});
  const auto hold = [&](TestRank& rank) {
    for (TensorId t = 0; t < world.tensors.size(); ++t) {
      rank.Hold(t, Box::Whole(world.tensors[t].shape), DType::kU8);
    }
  };
  for (int r = 0; r < trainers; ++r) hold(world.AddSource(r, "train", r));
  world.nics.emplace_back("train", trainers);
  for (int n = 0; n < nodes; ++n) {
    const std::string node = "roll" + std::to_string(n);
    for (int r = 0; r < ranks; ++r) hold(world.AddDestination(n, r, node, r));
    world.nics.emplace_back(node, ranks);
  }
  return world;
}

TEST(FanOut, OffMeansNoWaits) {
  const Plan plan = MustPlan(ReplicatedWorld(2, 2, 2, 100, FanOut::kNone));
  for (const Transfer& transfer : plan.transfers) {
    EXPECT_TRUE(transfer.waits_for.empty());
    EXPECT_EQ(plan.ranks[transfer.source].id.role, Role::kTrainer);
  }
}

TEST(FanOut, BytesEnterANodeOnceOverAllItsNics) {
  World world = ReplicatedWorld(4, 1, 4, 1000, FanOut::kNode);
  const Plan plan = MustPlan(world);
  EXPECT_EQ(plan.stats.wire_bytes, static_cast<uint64_t>(world.tensors.total_bytes()));
  EXPECT_EQ(plan.stats.bytes, 4u * world.tensors.total_bytes());
  EXPECT_LT(plan.stats.ratio(), 1.5);  // parts of 64 KiB are as fine as it gets
  for (const Transfer& transfer : plan.transfers) {
    const bool passed_on = plan.ranks[transfer.source].id.role == Role::kRollout;
    EXPECT_EQ(passed_on, !transfer.waits_for.empty());
    if (passed_on) {
      EXPECT_EQ(plan.ranks[transfer.source].node, plan.ranks[transfer.destination].node);
    }
    for (TransferId id : transfer.waits_for) {
      EXPECT_EQ(plan.transfers[id].destination, transfer.source);
      EXPECT_EQ(plan.transfers[id].tensor, transfer.tensor);
    }
  }
  world.Fill();
  world.Execute(plan);
  world.ExpectDelivered();
}

TEST(FanOut, NodesPassOnWhatTrainersCannotCarry) {
  // One trainer NIC, four nodes: without relays it carries four times the least.
  World world = ReplicatedWorld(1, 4, 2, 1000, FanOut::kNode);
  const uint64_t total = world.tensors.total_bytes();
  EXPECT_EQ(MustPlan(world).stats.busiest_out_bytes, 4 * total);
  world.fan_out = FanOut::kRelay;
  const Plan plan = MustPlan(world);
  EXPECT_EQ(plan.stats.wire_bytes, 4 * total);
  EXPECT_LT(plan.stats.ratio(), 1.7);
  world.Fill();
  world.Execute(plan);
  world.ExpectDelivered();
}

TEST(FanOut, NoRelayWhereTrainersSuffice) {
  const World world = ReplicatedWorld(8, 2, 2, 1000, FanOut::kRelay);
  const Plan plan = MustPlan(world);
  for (const Transfer& transfer : plan.transfers) {
    if (plan.ranks[transfer.source].node != plan.ranks[transfer.destination].node) {
      EXPECT_EQ(plan.ranks[transfer.source].id.role, Role::kTrainer);
    }
  }
}

TEST(FanOut, OtherTypesAndBoxesAreNotPassedOn) {
  World world;
  world.fan_out = FanOut::kRelay;
  world.tensors.Add("w", DType::kBF16, {64, 4});
  world.AddSource(0, "a").Hold(0, Box::Whole({64, 4}));
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({64, 4}));
  world.AddDestination(0, 1, "b").Hold(0, Box::Whole({64, 4}), DType::kF32);
  world.AddDestination(0, 2, "b").Hold(0, {{0, 0}, {32, 4}});
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 3u);
  for (const Transfer& transfer : plan.transfers) EXPECT_TRUE(transfer.waits_for.empty());
  world.Fill();
  world.Execute(plan);
  world.ExpectDelivered();
}

}  // namespace
}  // namespace xfer
