#include "common/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>

#include "tests/unit/common/plan/plan_world.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Rows [first, first + rows) of a matrix.
Box RowsOf(int64_t first, int64_t rows, int64_t columns) { return {{first, 0}, {rows, columns}}; }

Plan MustPlan(const World& world) {
  absl::StatusOr<Plan> plan = BuildPlan(world.Input());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

void ExpectFails(const World& world, absl::StatusCode code,
                 const ::testing::Matcher<std::string>& message) {
  const absl::Status status = BuildPlan(world.Input()).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), message);
}

TEST(Planner, WholeTensorIsOneRun) {
  World world;
  world.tensors.Add("w", DType::kBF16, {64, 32});
  world.AddSource(0, "a").Hold(0, Box::Whole({64, 32}));
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({64, 32}));
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 1u);
  EXPECT_THAT(plan.transfers[0].copies, testing::ElementsAre(Copy{0, 0, 64 * 32 * 2, {}}));
  EXPECT_TRUE(plan.transfers[0].conversion.none());
  EXPECT_EQ(plan.stats.wire_bytes, 4096u);
  EXPECT_EQ(plan.stats.busiest_in_bytes, 4096u);
  EXPECT_EQ(plan.stats.lower_bound_bytes, 4096u);
  EXPECT_EQ(plan.stats.ratio(), 1.0);
}

TEST(Planner, ColumnShardsAreOneLevel) {
  World world;
  world.tensors.Add("down_proj", DType::kBF16, {16, 8});
  world.AddSource(0, "a").Hold(0, {{0, 0}, {16, 4}});
  world.AddSource(1, "a").Hold(0, {{0, 4}, {16, 4}});
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({16, 8}));
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 2u);
  EXPECT_THAT(plan.transfers[0].copies, testing::ElementsAre(Copy{0, 0, 8, {{16, 8, 16}}}));
  EXPECT_THAT(plan.transfers[1].copies, testing::ElementsAre(Copy{0, 8, 8, {{16, 8, 16}}}));
}

// Megatron's fused qkv: groups of P query heads, a key head and a value head; the engine has all
// queries, then all keys, then all values.
TEST(Planner, QkvGroupsFoldToOneCopyATensor) {
  constexpr int64_t kD = 4, kP = 3, kGroups = 4, kTp = 2, kHidden = 10;
  constexpr int64_t kRow = kHidden * 2, kB = (kP + 2) * kD;
  World world;
  world.tensors.Add("q", DType::kBF16, {kGroups * kP * kD, kHidden});
  world.tensors.Add("k", DType::kBF16, {kGroups * kD, kHidden});
  world.tensors.Add("v", DType::kBF16, {kGroups * kD, kHidden});
  for (int tp = 0; tp < kTp; ++tp) {
    TestRank& rank = world.AddSource(tp, "a", tp);
    for (int64_t g = tp * kGroups / kTp; g < (tp + 1) * kGroups / kTp; ++g) {
      rank.Hold(0, RowsOf(g * kP * kD, kP * kD, kHidden));
      rank.Hold(1, RowsOf(g * kD, kD, kHidden));
      rank.Hold(2, RowsOf(g * kD, kD, kHidden));
    }
  }
  TestRank& engine = world.AddDestination(0, 0, "b");
  for (TensorId t = 0; t < 3; ++t) engine.Hold(t, Box::Whole(world.tensors[t].shape));
  Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 6u);  // three tensors, two sources
  EXPECT_EQ(plan.transfers[0].box, RowsOf(0, 2 * kP * kD, kHidden));
  EXPECT_EQ(plan.transfers[1].box, RowsOf(2 * kP * kD, 2 * kP * kD, kHidden));
  const uint64_t q_run = kP * kD * kRow, head = kD * kRow;
  EXPECT_THAT(plan.transfers[0].copies,
              testing::ElementsAre(Copy{0, 0, q_run, {{2, kB * kRow, kP * kD * kRow}}}));
  EXPECT_THAT(plan.transfers[2].copies,
              testing::ElementsAre(Copy{q_run, 4 * q_run, head, {{2, kB * kRow, kD * kRow}}}));
  world.Fill();
  world.Execute(plan);
  world.ExpectDelivered();

  // The way back, from the engine's order to Megatron's, joins pieces of the destination.
  World back;
  back.tensors = world.tensors;
  back.AddSource(0, "a").manifest = engine.manifest;
  for (const TestRank& source : world.sources) {
    back.AddDestination(0, source.rank.id.rank, "b").manifest = source.manifest;
  }
  plan = MustPlan(back);
  ASSERT_EQ(plan.transfers.size(), 6u);
  EXPECT_THAT(plan.transfers[0].copies,
              testing::ElementsAre(Copy{0, 0, q_run, {{2, kP * kD * kRow, kB * kRow}}}));
}

// The indexer's half swap: per head [second half, first half] on one side.
TEST(Planner, HalfSwapOfEveryHeadFoldsToTwoLevels) {
  constexpr int64_t kHeads = 5, kHalf = 4, kColumns = 3, kBytes = kHalf * kColumns * 2;
  World world;
  world.tensors.Add("wq_b", DType::kBF16, {kHeads * 2 * kHalf, kColumns});
  TestRank& source = world.AddSource(0, "a");
  for (int64_t h = 0; h < kHeads; ++h) {
    source.Hold(0, RowsOf((2 * h + 1) * kHalf, kHalf, kColumns));
    source.Hold(0, RowsOf(2 * h * kHalf, kHalf, kColumns));
  }
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole(world.tensors[0].shape));
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 1u);
  EXPECT_THAT(plan.transfers[0].copies,
              testing::ElementsAre(Copy{
                  kBytes, 0, kBytes, {{kHeads, 2 * kBytes, 2 * kBytes}, {2, -kBytes, kBytes}}}));
  world.Fill();
  world.Execute(plan);
  world.ExpectDelivered();
}

TEST(Planner, NeighbouringPiecesMergeToOneRun) {
  World world;
  world.tensors.Add("w", DType::kF32, {30});
  TestRank& source = world.AddSource(0, "a");
  for (int i = 0; i < 10; ++i) source.Hold(0, {{3 * i}, {3}}, DType::kF32);
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({30}), DType::kF32);
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 1u);
  EXPECT_THAT(plan.transfers[0].copies, testing::ElementsAre(Copy{0, 0, 120, {}}));
}

TEST(Planner, RowPiecesOfStridedColumnsExtendTheLevel) {
  World world;
  world.tensors.Add("w", DType::kBF16, {12, 4});
  TestRank& source = world.AddSource(0, "a");
  for (int i = 0; i < 3; ++i) source.Hold(0, RowsOf(4 * i, 4, 4));
  TestRank& destination = world.AddDestination(0, 0, "b");
  Piece wide = PackedPiece(0, Box::Whole({12, 4}), 0);
  wide.strides = {64, 2};  // rows with room between them
  destination.manifest = {{12 * 64}, {wide}, {}};
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 1u);
  EXPECT_THAT(plan.transfers[0].copies, testing::ElementsAre(Copy{0, 0, 8, {{12, 8, 64}}}));
}

TEST(Planner, Conversion) {
  World world;
  world.tensors.Add("k_norm", DType::kBF16, {6, 4});
  world.AddSource(0, "a").Hold(0, Box::Whole({6, 4}), DType::kBF16);
  world.AddDestination(0, 0, "b").Hold(0, {{0, 1}, {6, 2}}, DType::kF32);
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 1u);
  EXPECT_EQ(plan.transfers[0].conversion.from, DType::kBF16);
  EXPECT_EQ(plan.transfers[0].conversion.to, DType::kF32);
  EXPECT_EQ(plan.transfers[0].bytes, 48u);
  EXPECT_THAT(plan.transfers[0].copies, testing::ElementsAre(Copy{2, 0, 8, {{6, 8, 8}}}));
}

TEST(Planner, ReplicaOfEqualTypeIsPreferredToAConversion) {
  World world;
  world.tensors.Add("w", DType::kBF16, {8});
  world.AddSource(0, "a").Hold(0, Box::Whole({8}), DType::kF32);
  world.AddSource(1, "a").Hold(0, Box::Whole({8}), DType::kBF16);
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({8}), DType::kBF16);
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 1u);
  EXPECT_EQ(plan.ranks[plan.transfers[0].source].id, Trainer(1));
}

TEST(Planner, RefusesTypesWithoutConversion) {
  World world;
  world.tensors.Add("w", DType::kBF16, {8});
  world.AddSource(0, "a").Hold(0, Box::Whole({8}), DType::kBF16);
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({8}), DType::kF8E4M3);
  ExpectFails(world, absl::StatusCode::kInvalidArgument,
              AllOf(HasSubstr("tensor w"), HasSubstr("BF16"), HasSubstr("F8_E4M3"),
                    HasSubstr("engine 0 rank 0")));
}

TEST(Planner, RefusesOverlapInMemory) {
  World world;
  world.tensors.Add("first", DType::kBF16, {8});
  world.tensors.Add("second", DType::kBF16, {8});
  TestRank& source = world.AddSource(0, "a");
  source.Hold(0, Box::Whole({8}));
  source.Hold(1, Box::Whole({8}));
  TestRank& destination = world.AddDestination(2, 1, "b");
  destination.manifest.region_bytes = {31};
  destination.manifest.pieces = {PackedPiece(0, Box::Whole({8}), 0),
                                 PackedPiece(1, Box::Whole({8}), 15)};
  ExpectFails(world, absl::StatusCode::kInvalidArgument,
              AllOf(HasSubstr("engine 2 rank 1"), HasSubstr("first"), HasSubstr("second"),
                    HasSubstr("overlap")));
  destination.manifest.pieces[1].offset = 16;
  destination.manifest.region_bytes = {32};
  EXPECT_TRUE(BuildPlan(world.Input()).ok());
}

TEST(Planner, InterleavedPiecesAreNoOverlap) {
  World world;
  world.tensors.Add("w", DType::kU8, {1000, 6});
  world.AddSource(0, "a").Hold(0, Box::Whole({1000, 6}), DType::kU8);
  TestRank& destination = world.AddDestination(0, 0, "b");
  destination.manifest.region_bytes = {6000};
  for (int64_t c = 0; c < 6; c += 2) {
    Piece piece = PackedPiece(0, {{0, c}, {1000, 2}}, c, DType::kU8);
    piece.strides = {6, 1};
    destination.manifest.pieces.push_back(piece);
  }
  EXPECT_TRUE(BuildPlan(world.Input()).ok());
  destination.manifest.pieces[1].offset = 1;
  ExpectFails(world, absl::StatusCode::kInvalidArgument, HasSubstr("overlap"));
  // Other strides that still never meet: every second and every fourth byte.
  destination.manifest.pieces.clear();
  Piece even = PackedPiece(0, {{0, 0}, {100, 1}}, 0, DType::kU8);
  even.strides = {2, 1};
  Piece odd = PackedPiece(0, {{0, 1}, {50, 1}}, 1, DType::kU8);
  odd.strides = {4, 1};
  destination.manifest.pieces = {even, odd};
  EXPECT_TRUE(BuildPlan(world.Input()).ok());
  destination.manifest.pieces[1].offset = 2;
  ExpectFails(world, absl::StatusCode::kInvalidArgument, HasSubstr("overlap"));
}

TEST(Planner, RefusesBadPieces) {
  World world;
  world.tensors.Add("w", DType::kBF16, {8, 4});
  world.AddSource(0, "a").Hold(0, Box::Whole({8, 4}));
  TestRank& destination = world.AddDestination(0, 0, "b");
  destination.Hold(0, Box::Whole({8, 4}));
  const Piece good = destination.manifest.pieces[0];
  const auto expect = [&](const char* what, const std::function<void(Piece&)>& spoil) {
    SCOPED_TRACE(what);
    destination.manifest.pieces[0] = good;
    spoil(destination.manifest.pieces[0]);
    ExpectFails(world, absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("engine 0 rank 0"), HasSubstr(what)));
    // Sources are checked alike.
    World turned;
    turned.tensors = world.tensors;
    turned.AddSource(0, "a").manifest = destination.manifest;
    ExpectFails(turned, absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("trainer 0"), HasSubstr(what)));
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  expect("tensor is unknown", [](Piece& p) { p.tensor = 1; });
  expect("tensor is unknown", [](Piece& p) { p.tensor = -1; });
  expect("number of dimensions", [](Piece& p) { p.strides.pop_back(); });
  expect("type is unknown", [](Piece& p) { p.dtype = static_cast<DType>(99); });
  expect("region is unknown", [](Piece& p) { p.region = 1; });
  expect("region is unknown", [](Piece& p) { p.region = -1; });
  expect("leaves its tensor", [](Piece& p) { p.box.start[0] = 1; });
  expect("leaves its tensor", [](Piece& p) { p.box.start[0] = -1; });
  expect("leaves its tensor", [](Piece& p) { p.box.extent[1] = 0; });
  expect("leaves its tensor", [](Piece& p) { p.box.extent[1] = kHuge; });
  expect("leaves its tensor", [](Piece& p) { p.box.start[1] = kHuge; });
  expect("not positive", [](Piece& p) { p.strides[0] = -8; });
  expect("not positive", [](Piece& p) { p.strides[1] = 0; });
  expect("leaves its region", [](Piece& p) { p.offset = 1; });
  expect("leaves its region", [](Piece& p) { p.offset = ~0ull; });
  expect("leaves its region", [](Piece& p) { p.strides[0] = kHuge; });
  destination.manifest.pieces[0] = good;
  destination.manifest.pieces[0].strides = {2, 2};
  ExpectFails(world, absl::StatusCode::kInvalidArgument, HasSubstr("overlaps itself"));
}

TEST(Planner, RefusesBadRanks) {
  World world;
  world.tensors.Add("w", DType::kBF16, {8});
  world.AddSource(0, "a").Hold(0, Box::Whole({8}));
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({8}));
  PlanInput input = world.Input();
  input.sources.push_back(input.sources[0]);
  EXPECT_EQ(BuildPlan(input).status().code(), absl::StatusCode::kInvalidArgument);
  input = world.Input();
  input.destinations[0].manifest = nullptr;
  EXPECT_EQ(BuildPlan(input).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LowerBound(input), 0u);
  input = world.Input();
  input.sources[0].rank.nic = -1;
  EXPECT_EQ(BuildPlan(input).status().code(), absl::StatusCode::kInvalidArgument);
  input.tensors = nullptr;
  EXPECT_EQ(BuildPlan(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Planner, NothingToDoIsAnEmptyPlan) {
  World world;
  world.tensors.Add("w", DType::kBF16, {8});
  EXPECT_EQ(MustPlan(world).transfers.size(), 0u);
  world.AddSource(0, "a").Hold(0, Box::Whole({8}));
  world.AddDestination(0, 0, "b");
  const Plan plan = MustPlan(world);
  EXPECT_EQ(plan.transfers.size(), 0u);
  EXPECT_EQ(plan.ranks.size(), 2u);
  EXPECT_EQ(plan.stats.ratio(), 1.0);
}

TEST(Planner, PartlyOverlappingSourcesCoverEachByteOnce) {
  World world;
  world.tensors.Add("w", DType::kBF16, {10, 10});
  world.AddSource(0, "a").Hold(0, {{0, 0}, {7, 10}});
  world.AddSource(1, "b").Hold(0, {{3, 0}, {7, 6}});
  world.AddSource(2, "c").Hold(0, {{5, 4}, {5, 6}});
  world.AddDestination(0, 0, "d").Hold(0, Box::Whole({10, 10}));
  world.AddDestination(0, 1, "e").Hold(0, {{2, 2}, {7, 7}});
  const Plan plan = MustPlan(world);
  world.Fill();
  world.Execute(plan);
  world.ExpectDelivered();
}

TEST(Planner, SameNodeSourceCostsNoNic) {
  World world;
  world.tensors.Add("w", DType::kBF16, {1000});
  world.AddSource(0, "a").Hold(0, Box::Whole({1000}));
  world.AddSource(1, "b").Hold(0, Box::Whole({1000}));
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({1000}));
  world.AddDestination(1, 0, "c").Hold(0, Box::Whole({1000}));
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 2u);
  EXPECT_EQ(plan.ranks[plan.transfers[0].source].id, Trainer(1));
  EXPECT_EQ(plan.stats.bytes, 4000u);
  EXPECT_EQ(plan.stats.wire_bytes, 2000u);
  EXPECT_EQ(plan.stats.busiest_in_bytes, 2000u);
  EXPECT_EQ(plan.stats.lower_bound_bytes, 2000u);
}

TEST(LowerBound, SharesWhatEntersOverTheNicsOfANode) {
  World world;
  world.tensors.Add("w", DType::kBF16, {1000});
  world.AddSource(0, "a", 0).Hold(0, Box::Whole({1000}));
  for (int r = 0; r < 2; ++r) world.AddDestination(0, r, "b", r).Hold(0, Box::Whole({1000}));
  // Both ranks need the same 2000 bytes: they must enter once, over two NICs; but must leave by
  // one.
  EXPECT_EQ(LowerBound(world.Input()), 2000u);
  world.nics = {{"a", 4}, {"b", 2}};
  EXPECT_EQ(LowerBound(world.Input()), 1000u);
  world.nics = {{"a", 4}, {"b", 8}, {"elsewhere", 100}};
  EXPECT_EQ(LowerBound(world.Input()), 500u);
}

// Dense layers of a model with two layers' worth of shapes, TP 2 x CP 2 to an engine of TP 2.
World ReplicatedTrainers() {
  World world;
  constexpr int64_t kHidden = 2560, kFeed = 9728, kVocab = 151936;
  for (int layer = 0; layer < 12; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    world.tensors.Add(name + ".norm", DType::kBF16, {kHidden});
    world.tensors.Add(name + ".q", DType::kBF16, {4096, kHidden});
    world.tensors.Add(name + ".o", DType::kBF16, {kHidden, 4096});
    world.tensors.Add(name + ".gate", DType::kBF16, {kFeed, kHidden});
    world.tensors.Add(name + ".down", DType::kBF16, {kHidden, kFeed});
  }
  world.tensors.Add("embed", DType::kBF16, {kVocab, kHidden});
  const auto hold = [&](TestRank& rank, int part) {
    for (TensorId t = 0; t < world.tensors.size(); ++t) {
      const std::string& name = world.tensors[t].name;
      Box box = Box::Whole(world.tensors[t].shape);
      const bool by_columns = name.ends_with(".o") || name.ends_with(".down");
      if (box.extent.size() > 1) {
        const size_t d = by_columns ? 1 : 0;
        box.extent[d] /= 2;
        box.start[d] = part * box.extent[d];
      }
      rank.Hold(t, box);
    }
  };
  for (int r = 0; r < 4; ++r) hold(world.AddSource(r, "train", r), r % 2);
  for (int r = 0; r < 2; ++r) hold(world.AddDestination(0, r, "roll", r), r);
  world.nics = {{"train", 4}, {"roll", 2}};
  return world;
}

TEST(Balance, AllReplicasCarryEqualBytes) {
  const Plan plan = MustPlan(ReplicatedTrainers());
  const std::vector<uint64_t> sent = World::WireBytesBySource(plan);
  ASSERT_EQ(sent.size(), 4u);
  const uint64_t mean = std::accumulate(sent.begin(), sent.end(), uint64_t{0}) / 4;
  for (uint64_t bytes : sent) {
    EXPECT_GT(bytes, mean * 0.98);
    EXPECT_LT(bytes, mean * 1.02);
  }
  EXPECT_LT(plan.stats.ratio(), 1.01);
}

TEST(Balance, OneLargeTensorIsSplitByRows) {
  World world;
  world.tensors.Add("embed", DType::kBF16, {150000, 1000});
  for (int r = 0; r < 4; ++r) world.AddSource(r, "a", r).Hold(0, Box::Whole({150000, 1000}));
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({150000, 1000}));
  const Plan plan = MustPlan(world);
  ASSERT_EQ(plan.transfers.size(), 4u);
  int64_t row = 0;
  for (const Transfer& transfer : plan.transfers) {
    EXPECT_EQ(transfer.box.start[0], row);
    row += transfer.box.extent[0];
    EXPECT_NEAR(static_cast<double>(transfer.bytes), 75e6, 75e6 * 0.01);
  }
  EXPECT_EQ(row, 150000);
}

TEST(Balance, SmallTensorsAreNotSplit) {
  World world;
  world.tensors.Add("norm", DType::kBF16, {4096});
  for (int r = 0; r < 4; ++r) world.AddSource(r, "a", r).Hold(0, Box::Whole({4096}));
  world.AddDestination(0, 0, "b").Hold(0, Box::Whole({4096}));
  EXPECT_EQ(MustPlan(world).transfers.size(), 1u);
}

// What only one rank holds is dealt out first; what all hold fills the valleys.
TEST(Balance, FlexibleTensorsMakeUpForInflexibleOnes) {
  World world;
  for (int i = 0; i < 3; ++i) {
    world.tensors.Add("expert." + std::to_string(i), DType::kBF16, {1000, 1000});
  }
  for (int i = 0; i < 40; ++i) {
    world.tensors.Add("dense." + std::to_string(i), DType::kBF16, {1500, 100});
  }
  for (int r = 0; r < 3; ++r) {
    TestRank& rank = world.AddSource(r, "a", r);
    // Rank 0 alone has two experts, rank 1 one, rank 2 none.
    if (r < 2) rank.Hold(r, Box::Whole({1000, 1000}));
    if (r == 0) rank.Hold(2, Box::Whole({1000, 1000}));
    for (TensorId t = 3; t < 43; ++t) rank.Hold(t, Box::Whole({1500, 100}));
  }
  TestRank& engine = world.AddDestination(0, 0, "b");
  for (TensorId t = 0; t < 43; ++t) engine.Hold(t, Box::Whole(world.tensors[t].shape));
  const std::vector<uint64_t> sent = World::WireBytesBySource(MustPlan(world));
  // 6 MB of experts and 12 MB of dense: 6 MB each.
  for (uint64_t bytes : sent) EXPECT_NEAR(static_cast<double>(bytes), 6e6, 6e6 * 0.02);
}

TEST(Balance, RanksThatShareANicShareItsBytes) {
  World world;
  for (int i = 0; i < 16; ++i) {
    world.tensors.Add("w" + std::to_string(i), DType::kBF16, {1000, 100});
  }
  for (int r = 0; r < 4; ++r) {
    TestRank& rank = world.AddSource(r, r < 3 ? "a" : "b");
    for (TensorId t = 0; t < 16; ++t) rank.Hold(t, Box::Whole({1000, 100}));
  }
  TestRank& engine = world.AddDestination(0, 0, "c");
  for (TensorId t = 0; t < 16; ++t) engine.Hold(t, Box::Whole({1000, 100}));
  const std::vector<uint64_t> sent = World::WireBytesBySource(MustPlan(world));
  // Three ranks share a's one NIC, so it carries half and b's the other half.
  EXPECT_EQ(sent[3], 8u * 200000);
  for (int r = 0; r < 3; ++r) EXPECT_GE(sent[r], 2u * 200000);
}

TEST(Describe, NamesRanksPairsAndCopies) {
  World world;
  world.tensors.Add("model.norm", DType::kBF16, {6, 4});
  world.AddSource(0, "a").Hold(0, Box::Whole({6, 4}));
  world.AddDestination(0, 0, "b").Hold(0, {{0, 1}, {6, 2}}, DType::kF32);
  world.AddDestination(0, 1, "b").Hold(0, {{0, 1}, {6, 2}}, DType::kF32);
  const Plan plan = MustPlan(world);
  const std::string text = Describe(plan, world.tensors, 1);
  EXPECT_THAT(text, AllOf(HasSubstr("2 transfers"), HasSubstr("trainer 0 on a NIC 0: sends 96 B"),
                          HasSubstr("trainer 0 -> engine 0 rank 1: 48 B in 1 transfers"),
                          HasSubstr("#0 model.norm [0:6, 1:3]"), HasSubstr("BF16 to F32"),
                          HasSubstr("2 -> 0, run 8, x6 (8 -> 8)"), HasSubstr("and 1 more")));
  EXPECT_EQ(Describe(plan, world.tensors, 0).find("model.norm"), std::string::npos);
}

}  // namespace
}  // namespace xfer
