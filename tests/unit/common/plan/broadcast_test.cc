// Plans carried out by broadcasts: every stream packed once, from its packer's memory, and unpacked
// by all that need it.
#include "common/plan/broadcast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "tests/unit/common/plan/plan_world.h"

namespace xfer {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 16;

// Modules with two tensors each, column-parallel over two trainers with a replica of both on other
// nodes, for engines that want halves or the whole.
World TwoStages(uint32_t seed) {
  std::mt19937 rng(seed);
  World world;
  const int modules = 2 + static_cast<int>(rng() % 5);
  for (int m = 0; m < modules; ++m) {
    for (const char* part : {".gate.weight", ".up.weight"}) {
      world.tensors.Add("layers." + std::to_string(m) + part, DType::kBF16, {kRows, kColumns});
    }
  }
  const auto half = [](int64_t h) { return Box{{h * kRows / 2, 0}, {kRows / 2, kColumns}}; };
  for (int r = 0; r < 8; ++r) {  // stage r / 4, replica r / 2 % 2, half r % 2
    TestRank& rank = world.AddSource(r, "train" + std::to_string(r / 2 + (seed % 2) * (r % 2)));
    for (int t = 0; t < 2 * modules; ++t) {
      if (t * 2 / (2 * modules) == r / 4) rank.Hold(t, half(r % 2));
    }
  }
  for (int e = 0; e < 3; ++e) {
    for (int r = 0; r < 2; ++r) {
      TestRank& rank = world.AddDestination(e, r, "serve" + std::to_string(e % 2));
      for (int t = 0; t < 2 * modules; ++t) {
        rank.Hold(t, e == 2 ? Box::Whole(world.tensors[t].shape) : half(r));
      }
    }
  }
  return world;
}

std::vector<int32_t> StagesOf(const Plan& plan) {
  std::vector<int32_t> stages;
  for (const PlanRank& rank : plan.ranks) {
    stages.push_back(rank.id.role == Role::kTrainer ? rank.id.rank / 4 : 0);
  }
  return stages;
}

const TestRank& RankOf(const std::deque<TestRank>& ranks, const RankId& id) {
  return *std::find_if(ranks.begin(), ranks.end(),
                       [&](const TestRank& rank) { return rank.rank.id == id; });
}

// Packs and unpacks all buckets as agents do, in memory.
void Execute(World& world, const Plan& plan, const BroadcastPlan& broadcast) {
  std::vector<std::vector<uint8_t>> buckets;
  for (const BroadcastBucket& bucket : broadcast.buckets) buckets.emplace_back(bucket.bytes);
  for (const Transfer& t : plan.transfers) {
    if (!broadcast.slots[t.id].packed) continue;
    const TestRank& source = RankOf(world.sources, plan.ranks[t.source].id);
    uint8_t* out = buckets[broadcast.slots[t.id].bucket].data() + broadcast.slots[t.id].offset;
    ForEachRun(t, 0, t.bytes, [&](uint64_t from, uint64_t, uint64_t bytes) {
      std::memcpy(out, source.memory[t.source_region].data() + from, bytes);
      out += bytes;
    });
  }
  for (const Transfer& t : plan.transfers) {
    auto& destination =
        const_cast<TestRank&>(RankOf(world.destinations, plan.ranks[t.destination].id));
    const uint8_t* at = buckets[broadcast.slots[t.id].bucket].data() + broadcast.slots[t.id].offset;
    ForEachRun(t, 0, t.bytes, [&](uint64_t, uint64_t to, uint64_t bytes) {
      std::memcpy(destination.memory[t.destination_region].data() + to, at, bytes);
      at += bytes;
    });
  }
}

void ExpectSound(const World& world, const Plan& plan, const BroadcastPlan& broadcast) {
  std::map<std::pair<uint32_t, uint32_t>, int> packers;
  std::map<std::pair<std::string, std::string>, std::set<uint32_t>> modules;
  for (const Transfer& t : plan.transfers) {
    const BroadcastSlot& slot = broadcast.slots[t.id];
    ASSERT_LT(slot.bucket, broadcast.buckets.size());
    const BroadcastBucket& bucket = broadcast.buckets[slot.bucket];
    EXPECT_LT(slot.stream, bucket.streams);
    EXPECT_LE(slot.offset + t.bytes, bucket.bytes);
    const std::vector<std::string>& members = broadcast.communicators[bucket.communicator].members;
    EXPECT_TRUE(std::binary_search(members.begin(), members.end(), plan.ranks[t.destination].node));
    packers[{slot.bucket, slot.stream}] += slot.packed ? 1 : 0;
    if (!slot.packed) continue;
    EXPECT_EQ(members[bucket.root], plan.ranks[t.source].node);
    const std::string& name = world.tensor(t.tensor).name;
    modules[{members[bucket.root], name.substr(0, name.find('.', 7))}].insert(slot.bucket);
  }
  for (const auto& [stream, count] : packers) EXPECT_EQ(count, 1);
  for (const auto& [module, buckets] : modules) EXPECT_EQ(buckets.size(), 1) << module.second;
}

TEST(BroadcastPlan, DeliversEveryByteWhateverTheBucketSize) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    World world = TwoStages(seed);
    const absl::StatusOr<Plan> plan = BuildPlan(world.Input());
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (uint64_t bytes : {1, 600, 1 << 20}) {
      const absl::StatusOr<BroadcastPlan> broadcast =
          PlanBroadcast(*plan, world.tensors, StagesOf(*plan), bytes);
      ASSERT_TRUE(broadcast.ok()) << broadcast.status();
      ExpectSound(world, *plan, *broadcast);
      world.Fill();
      Execute(world, *plan, *broadcast);
      world.ExpectDelivered();
    }
  }
}

TEST(BroadcastPlan, StatesWhatIsBroadcastAndWhatIsKept) {
  const World world = TwoStages(0);
  const Plan plan = *BuildPlan(world.Input());
  const BroadcastPlan broadcast = *PlanBroadcast(plan, world.tensors, StagesOf(plan), 1 << 20);
  const uint64_t model = world.tensors.size() * kRows * kColumns * 2;
  EXPECT_EQ(broadcast.broadcast_bytes, model);  // each half once: its size needs no alignment
  EXPECT_EQ(broadcast.kept_bytes, model * 4);   // two engines of halves, one of two wholes
  EXPECT_EQ(broadcast.communicators.size(), 2);
  uint64_t delivered = 0;
  for (const BroadcastBucket& bucket : broadcast.buckets) {
    delivered += bucket.bytes * (broadcast.communicators[bucket.communicator].members.size() - 1);
  }
  EXPECT_EQ(broadcast.delivered_bytes, delivered);
}

TEST(BroadcastPlan, Refusals) {
  const World world = TwoStages(0);
  Plan plan = *BuildPlan(world.Input());
  const std::vector<int32_t> stages = StagesOf(plan);
  EXPECT_EQ(PlanBroadcast(plan, world.tensors, stages, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PlanBroadcast(plan, world.tensors, {}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  plan.transfers[1].waits_for.push_back(0);
  EXPECT_EQ(PlanBroadcast(plan, world.tensors, stages, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace xfer
