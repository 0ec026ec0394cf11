// Random tensors, partitions, replicas, strides and orders, carried out and compared byte by byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "tests/unit/common/plan/plan_world.h"

namespace xfer {
namespace {

Dims RandomShape(std::mt19937& rng) {
  Dims shape;
  for (size_t d = rng() % 20 == 0 ? 0 : 1 + rng() % 3; d > 0; --d) {
    shape.push_back(1 + static_cast<int64_t>(rng() % 14));
  }
  return shape;
}

DType RandomType(std::mt19937& rng) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kF32, DType::kU8, DType::kI64};
  return kTypes[rng() % 4];
}

// Each tensor is held whole by one to three groups of ranks, each with its own partition, and
// partly by others; every destination engine has its own partition, too.
World RandomWorld(uint32_t seed, bool convert, FanOut fan_out) {
  std::mt19937 rng(seed);
  World world;
  const int tensors = 1 + static_cast<int>(rng() % 6);
  for (int t = 0; t < tensors; ++t) {
    const DType dtype = convert ? DType::kBF16 : RandomType(rng);
    world.tensors.Add("tensor." + std::to_string(t), dtype, RandomShape(rng));
  }
  const int sources = 1 + static_cast<int>(rng() % 5);
  const int destinations = 1 + static_cast<int>(rng() % 4);
  std::vector<std::vector<Piece>> held(sources), wanted(destinations);
  constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32};
  for (TensorId t = 0; t < tensors; ++t) {
    const Box whole = Box::Whole(world.tensors[t].shape);
    DType from = world.tensors[t].dtype;
    DType to = from;
    if (convert) {
      from = kFloats[rng() % 3];
      to = from == DType::kF32 ? kFloats[rng() % 3] : (rng() % 2 ? from : DType::kF32);
    }
    const auto add = [&](std::vector<std::vector<Piece>>& ranks, const Box& box, DType dtype) {
      Piece piece;
      piece.tensor = t;
      piece.box = box;
      piece.dtype = dtype;
      ranks[rng() % ranks.size()].push_back(piece);
    };
    for (int g = 1 + static_cast<int>(rng() % 3); g > 0; --g) {
      for (const Box& box : RandomPartition(whole, 1 + static_cast<int>(rng() % 5), rng)) {
        add(held, box, from);
        if (rng() % 3 == 0) add(held, box, from);  // a replica, maybe even on the same rank
      }
    }
    for (int extra = static_cast<int>(rng() % 3); extra > 0; --extra) {
      add(held, RandomPartition(whole, 4, rng).front(), from);
    }
    for (int g = static_cast<int>(rng() % 3); g > 0; --g) {
      for (const Box& box : RandomPartition(whole, 1 + static_cast<int>(rng() % 5), rng)) {
        if (rng() % 5 != 0) add(wanted, box, to);
      }
    }
  }
  // Replicas on the destination side, which fan-out passes on.
  const std::vector<Piece> shared = wanted[0];
  for (int r = 1; r < destinations; ++r) {
    for (const Piece& piece : shared) {
      if (rng() % 2 == 0) wanted[r].push_back(piece);
    }
  }
  world.fan_out = fan_out;
  for (int r = 0; r < sources; ++r) {
    TestRank& rank = world.AddSource(r, "node" + std::to_string(rng() % 3), rng() % 2);
    PlaceRandomly(held[r], rank.manifest, rng);
  }
  for (int r = 0; r < destinations; ++r) {
    TestRank& rank =
        world.AddDestination(r / 2, r % 2, "node" + std::to_string(rng() % 4), rng() % 2);
    PlaceRandomly(wanted[r], rank.manifest, rng);
  }
  return world;
}

void ExpectEqual(const Plan& a, const Plan& b) {
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (size_t r = 0; r < a.ranks.size(); ++r) EXPECT_EQ(a.ranks[r].id, b.ranks[r].id);
  ASSERT_EQ(a.transfers.size(), b.transfers.size());
  for (size_t i = 0; i < a.transfers.size(); ++i) {
    const Transfer& x = a.transfers[i];
    const Transfer& y = b.transfers[i];
    EXPECT_EQ(x.id, y.id);
    EXPECT_EQ(x.tensor, y.tensor);
    EXPECT_EQ(x.box, y.box);
    EXPECT_EQ(x.source, y.source);
    EXPECT_EQ(x.source_region, y.source_region);
    EXPECT_EQ(x.destination, y.destination);
    EXPECT_EQ(x.destination_region, y.destination_region);
    EXPECT_EQ(x.copies, y.copies);
    EXPECT_EQ(x.bytes, y.bytes);
    EXPECT_EQ(x.waits_for, y.waits_for);
  }
}

// Ids follow destination rank, tensor, box; they are indices.
void ExpectOrdered(const Plan& plan) {
  for (size_t i = 0; i < plan.transfers.size(); ++i) {
    const Transfer& now = plan.transfers[i];
    EXPECT_EQ(now.id, i);
    if (i == 0) continue;
    const Transfer& before = plan.transfers[i - 1];
    const auto key = [&](const Transfer& t) {
      return std::make_tuple(plan.ranks[t.destination].id, t.tensor,
                             std::vector<int64_t>(t.box.start.begin(), t.box.start.end()));
    };
    EXPECT_LE(key(before), key(now));
  }
}

void RunSeeds(uint32_t first, uint32_t last, bool convert, FanOut fan_out = FanOut::kNone) {
  for (uint32_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world = RandomWorld(seed, convert, fan_out);
    absl::StatusOr<Plan> plan = BuildPlan(world.Input());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->generation, 7u);
    ExpectOrdered(*plan);
    world.Fill();
    world.Execute(*plan);
    world.ExpectDelivered();
    if (::testing::Test::HasFailure()) return;

    // The bound holds, and input order plays no part.
    EXPECT_GE(std::max(plan->stats.busiest_in_bytes, plan->stats.busiest_out_bytes),
              plan->stats.lower_bound_bytes);
    EXPECT_EQ(plan->stats.lower_bound_bytes, LowerBound(world.Input()));
    PlanInput shuffled = world.Input();
    std::mt19937 rng(seed);
    std::shuffle(shuffled.sources.begin(), shuffled.sources.end(), rng);
    std::shuffle(shuffled.destinations.begin(), shuffled.destinations.end(), rng);
    absl::StatusOr<Plan> again = BuildPlan(shuffled);
    ASSERT_TRUE(again.ok()) << again.status();
    ExpectEqual(*plan, *again);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PlannerProperty, DeliversEveryByte) { RunSeeds(0, 600, /*convert=*/false); }

TEST(PlannerProperty, DeliversConverted) { RunSeeds(10000, 10300, /*convert=*/true); }

TEST(PlannerProperty, DeliversWithFanOut) {
  RunSeeds(20000, 20300, /*convert=*/false, FanOut::kNode);
  RunSeeds(30000, 30300, /*convert=*/false, FanOut::kRelay);
  RunSeeds(40000, 40200, /*convert=*/true, FanOut::kRelay);
}

// The box that `text` names behind `words`.
Box BoxBehind(const std::string& text, const std::string& words) {
  Box box;
  size_t at = text.find(words);
  if (at == std::string::npos) return box;
  at += words.size();
  while (text[at] != ']') {
    long long first = 0, end = 0;
    int length = 0;
    if (std::sscanf(text.c_str() + at, "%*[[ ,]%lld:%lld%n", &first, &end, &length) != 2) break;
    box.start.push_back(first);
    box.extent.push_back(end - first);
    at += length;
  }
  return box;
}

// Taking any one source box away that has no replica must be noticed, with tensor and rank named.
TEST(PlannerProperty, MissingPieceIsNamed) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    World world;
    Dims shape;
    do {
      shape = RandomShape(rng);
    } while (shape.empty());
    world.tensors.Add("layer.weight", DType::kBF16, shape);
    const Box whole = Box::Whole(shape);
    std::vector<Box> boxes = RandomPartition(whole, 6, rng);
    const size_t missing = rng() % boxes.size();
    TestRank& source = world.AddSource(0, "a");
    source.manifest.region_bytes = {0};
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (i != missing) source.Hold(0, boxes[i]);
    }
    world.AddDestination(1, 3, "b").Hold(0, whole);
    absl::StatusOr<Plan> plan = BuildPlan(world.Input());
    ASSERT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << plan.status();
    const std::string message(plan.status().message());
    EXPECT_NE(message.find("layer.weight " + whole.ToString()), std::string::npos) << message;
    EXPECT_NE(message.find("engine 1 rank 3"), std::string::npos) << message;
    const int64_t lost = boxes[missing].NumElements();
    EXPECT_NE(message.find("lacks " + std::to_string(lost) + " of "), std::string::npos) << message;
    const Box named = BoxBehind(message, "first of them ");
    ASSERT_EQ(named.start.size(), shape.size()) << message;
    EXPECT_EQ(Intersect(named, boxes[missing]), named) << message;
  }
}

}  // namespace
}  // namespace xfer
