#include "common/plan/plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <tuple>
#include <vector>

namespace xfer {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

using RunOf = std::tuple<uint64_t, uint64_t, uint64_t>;

Transfer Of(std::vector<Copy> copies) {
  Transfer transfer;
  for (const Copy& copy : copies) transfer.bytes += copy.bytes();
  transfer.copies = {copies.begin(), copies.end()};
  return transfer;
}

// Every byte of the stream as (source, destination).
std::vector<std::pair<uint64_t, uint64_t>> Bytes(const Transfer& transfer) {
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (const Copy& copy : transfer.copies) {
    for (uint64_t r = 0; r < copy.runs(); ++r) {
      uint64_t rest = r;
      uint64_t source = copy.source_offset;
      uint64_t destination = copy.destination_offset;
      for (size_t l = copy.levels.size(); l-- > 0;) {
        source += rest % copy.levels[l].count * copy.levels[l].source_stride;
        destination += rest % copy.levels[l].count * copy.levels[l].destination_stride;
        rest /= copy.levels[l].count;
      }
      for (uint64_t b = 0; b < copy.run; ++b) out.emplace_back(source + b, destination + b);
    }
  }
  return out;
}

TEST(RankId, Names) {
  EXPECT_EQ((RankId{Role::kTrainer, 0, 3}).ToString(), "trainer 3");
  EXPECT_EQ((RankId{Role::kRollout, 1, 0}).ToString(), "engine 1 rank 0");
}

TEST(PlanStats, Ratio) {
  PlanStats stats;
  EXPECT_EQ(stats.ratio(), 1.0);
  stats.busiest_in_bytes = 300;
  stats.busiest_out_bytes = 200;
  stats.lower_bound_bytes = 200;
  EXPECT_EQ(stats.ratio(), 1.5);
}

TEST(ForEachRun, EqualsNaiveExpansionFromAnyBeginToAnyEnd) {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Copy> copies;
    for (int c = 1 + static_cast<int>(rng() % 4); c > 0; --c) {
      Copy copy{rng() % 50 + 5000, rng() % 50 + 5000, 1 + rng() % 7, {}};
      for (int l = static_cast<int>(rng() % 4); l > 0; --l) {
        copy.levels.push_back({1 + rng() % 4, static_cast<int64_t>(rng() % 60) - 30,
                               static_cast<int64_t>(rng() % 60) - 30});
      }
      copies.push_back(copy);
    }
    const Transfer transfer = Of(copies);
    const auto bytes = Bytes(transfer);
    for (int i = 0; i < 30; ++i) {
      uint64_t begin = rng() % (transfer.bytes + 1);
      uint64_t end = rng() % (transfer.bytes + 1);
      if (begin > end) std::swap(begin, end);
      uint64_t at = begin;
      RunOf before{0, 0, 0};
      ForEachRun(transfer, begin, end, [&](uint64_t s, uint64_t d, uint64_t n) {
        ASSERT_GT(n, 0u);
        const auto& [bs, bd, bn] = before;
        ASSERT_FALSE(bn > 0 && bs + bn == s && bd + bn == d) << "runs were not joined";
        before = {s, d, n};
        for (uint64_t b = 0; b < n; ++b) {
          ASSERT_LT(at, end);
          ASSERT_EQ(bytes[at], std::make_pair(s + b, d + b));
          ++at;
        }
      });
      ASSERT_EQ(at, end);
    }
  }
}

TEST(ForEachRun, JoinsAcrossCopiesAndLevels) {
  const Transfer transfer = Of({{0, 100, 8, {{3, 8, 8}}}, {24, 124, 8, {}}});
  std::vector<RunOf> runs;
  ForEachRun(transfer, 4, 32, [&](uint64_t s, uint64_t d, uint64_t n) {
    runs.push_back({s, d, n});
  });
  EXPECT_EQ(runs, (std::vector<RunOf>{{4, 104, 28}}));
}

TEST(ForEachRun, FindsItsPlaceWithoutWalking) {
  // 2^40 runs: the test would not end if any were walked over.
  const Transfer transfer = Of({{0, 0, 1, {{1ull << 20, 2, 2}, {1ull << 20, 1 << 22, 1 << 22}}}});
  std::vector<RunOf> runs;
  const uint64_t begin = (1ull << 39) + 5;
  ForEachRun(transfer, begin, begin + 1, [&](uint64_t s, uint64_t d, uint64_t n) {
    runs.push_back({s, d, n});
  });
  const uint64_t at = (1ull << 19) * 2 + 5 * (1ull << 22);
  EXPECT_EQ(runs, (std::vector<RunOf>{{at, at, 1}}));
}

TEST(ForEachRun, EmptyRange) {
  const Transfer transfer = Of({{0, 0, 8, {}}});
  ForEachRun(transfer, 8, 8, [](uint64_t, uint64_t, uint64_t) { FAIL(); });
}

TEST(CheckTransfer, TakesWhatFits) {
  EXPECT_TRUE(CheckTransfer(Of({{0, 0, 100, {}}}), 100, 100).ok());
  EXPECT_TRUE(CheckTransfer(Of({{0, 50, 10, {{5, 20, 10}}}}), 90, 100).ok());
  // Strides may be negative as long as the runs stay inside.
  EXPECT_TRUE(CheckTransfer(Of({{90, 0, 10, {{10, -10, 10}}}}), 100, 100).ok());
  // A conversion counts source bytes in its own element size.
  Transfer widens = Of({{0, 0, 40, {}}});
  widens.conversion = {DType::kBF16, DType::kF32};
  EXPECT_TRUE(CheckTransfer(widens, 20, 40).ok());
  EXPECT_FALSE(CheckTransfer(widens, 19, 40).ok());
  EXPECT_FALSE(CheckTransfer(widens, 20, 39).ok());
}

struct Hostile {
  const char* what;
  Copy copy;
  const char* message;
};

TEST(CheckTransfer, RefusesHostileCopies) {
  constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
  const Hostile cases[] = {
      {"run too long", {0, 0, 101, {}}, "leave the region"},
      {"source offset behind the end", {100, 0, 1, {}}, "source offset 100"},
      {"destination offset behind the end", {0, 100, 1, {}}, "destination offset 100"},
      {"offset + run wraps", {kMax, 0, 2, {}}, "leave the region"},
      {"huge run wraps", {2, 0, kMax, {}}, "leave the region"},
      {"empty run", {0, 0, 0, {}}, "run of 0"},
      {"no repeats", {0, 0, 1, {{0, 1, 1}}}, "repeats 0 times"},
      {"level leaves the region", {0, 0, 1, {{2, 100, 1}}}, "leave"},
      {"destination level leaves", {0, 0, 1, {{2, 1, 100}}}, "leave"},
      {"negative stride leaves", {9, 9, 1, {{2, -10, -9}}}, "leave"},
      {"negative destination stride leaves", {9, 9, 1, {{2, -9, -10}}}, "leave"},
      {"count * stride wraps to 0", {0, 0, 1, {{(1ull << 32) + 1, 1ll << 32, 1}}}, "region"},
      {"huge count", {0, 0, 1, {{kMax, 1, 1}}}, "region"},
      {"huge stride", {0, 0, 1, {{2, kMax64, 1}}}, "leaves"},
      {"most negative stride", {0, 0, 1, {{2, kMin64, 1}}}, "leaves"},
      {"most negative stride, huge count", {0, 0, 1, {{kMax, kMin64, kMin64}}}, "region"},
      {"stride 0", {0, 0, 1, {{50, 0, 1}}}, "stride is 0"},
      {"destination stride 0", {0, 0, 1, {{50, 1, 0}}}, "stride is 0"},
      {"levels that cancel out", {0, 0, 1, {{2, 90, 90}, {2, 90, 90}}}, "leave"},
  };
  for (const Hostile& hostile : cases) {
    SCOPED_TRACE(hostile.what);
    Transfer transfer;
    transfer.id = 12;
    transfer.copies = {hostile.copy};
    transfer.bytes = 1;
    const absl::Status status = CheckTransfer(transfer, 100, 100);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(hostile.message), std::string::npos) << status;
    EXPECT_NE(status.message().find("transfer 12"), std::string::npos) << status;
  }
}

TEST(CheckTransfer, HugeRegionsDoNotWrapEither) {
  const Copy copy{0, 0, 1, {{kMax, std::numeric_limits<int64_t>::min(), 1}}};
  Transfer transfer;
  transfer.copies = {copy};
  transfer.bytes = kMax;
  EXPECT_FALSE(CheckTransfer(transfer, kMax, kMax).ok());
  // 2^33 * 2^33 bytes are no 64-bit number.
  transfer.copies = {{0, 0, 1, {{1ull << 33, 1, 1}, {1ull << 33, 1, 1}}}};
  EXPECT_FALSE(CheckTransfer(transfer, kMax, kMax).ok());
  // Nor is the sum of these two.
  transfer.copies = {{0, 0, kMax - 1, {}}, {0, 0, kMax - 1, {}}};
  transfer.bytes = kMax - 3;
  EXPECT_FALSE(CheckTransfer(transfer, kMax, kMax).ok());
}

TEST(CheckTransfer, RefusesWrongTotals) {
  Transfer transfer = Of({{0, 0, 10, {}}});
  transfer.bytes = 11;
  EXPECT_FALSE(CheckTransfer(transfer, 100, 100).ok());
  transfer.bytes = 0;
  EXPECT_FALSE(CheckTransfer(transfer, 100, 100).ok());
  EXPECT_FALSE(CheckTransfer(Transfer{}, 100, 100).ok());
  // All inside, but more bytes than the destination has.
  EXPECT_FALSE(CheckTransfer(Of({{0, 0, 60, {}}, {0, 0, 60, {}}}), 100, 100).ok());
  Transfer odd = Of({{0, 0, 10, {}}});
  odd.conversion = {DType::kBF16, DType::kF32};
  EXPECT_FALSE(CheckTransfer(odd, 100, 100).ok()) << "10 bytes are no whole number of F32";
  odd.conversion = {static_cast<DType>(77), DType::kF32};
  EXPECT_FALSE(CheckTransfer(odd, 100, 100).ok());
}

}  // namespace
}  // namespace xfer
