#include "common/layout/footprint.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

// Every byte of the tensor, as often as an element has it.
std::multiset<uint64_t> BytesOf(uint64_t offset, const Dims& shape, const Dims& strides,
                                int64_t element) {
  std::multiset<uint64_t> out;
  for (int64_t i = 0; i < NumElements(shape); ++i) {
    int64_t rest = i;
    uint64_t at = offset;
    for (size_t d = shape.size(); d-- > 0;) {
      at += static_cast<uint64_t>(rest % shape[d] * strides[d]);
      rest /= shape[d];
    }
    for (int64_t b = 0; b < element; ++b) out.insert(at + b);
  }
  return out;
}

struct Drawn {
  uint64_t offset;
  Dims shape;
  Dims strides;
  int64_t element;
};

Drawn Draw(std::mt19937& rng) {
  const auto pick = [&rng](int64_t min, int64_t max) {
    return std::uniform_int_distribution<int64_t>(min, max)(rng);
  };
  Drawn out{static_cast<uint64_t>(pick(0, 40)), {}, {}, pick(1, 3)};
  for (int64_t d = pick(1, 3); d > 0; --d) {
    out.shape.push_back(pick(1, 4));
    out.strides.push_back(pick(1, 24));
  }
  return out;
}

TEST(FootprintTest, SaysWhatTheBytesSay) {
  std::mt19937 rng(3);
  int accepted = 0;
  int apart_though_entangled = 0;
  for (int round = 0; round < 20000; ++round) {
    const Drawn a = Draw(rng);
    const Drawn b = Draw(rng);
    const auto fa = MakeFootprint(a.offset, a.shape, a.strides, a.element);
    const auto fb = MakeFootprint(b.offset, b.shape, b.strides, b.element);
    const std::multiset<uint64_t> bytes_a = BytesOf(a.offset, a.shape, a.strides, a.element);
    const std::multiset<uint64_t> bytes_b = BytesOf(b.offset, b.shape, b.strides, b.element);
    const std::set<uint64_t> once(bytes_a.begin(), bytes_a.end());
    if (!fa.has_value()) continue;
    ++accepted;
    // No byte belongs to two elements, and the length is right.
    ASSERT_EQ(once.size(), bytes_a.size());
    ASSERT_EQ(fa->offset + fa->length, *once.rbegin() + 1);
    ASSERT_EQ(fa->run * fa->runs(), once.size());
    if (!fb.has_value()) continue;
    bool common = false;
    for (uint64_t byte : bytes_b) common = common || once.count(byte) != 0;
    int64_t budget = 1000;
    const std::optional<bool> overlap = Overlap(*fa, *fb, budget);
    ASSERT_TRUE(overlap.has_value());
    ASSERT_EQ(*overlap, common);
    const bool entangled =
        fa->offset < fb->offset + fb->length && fb->offset < fa->offset + fa->length;
    apart_though_entangled += entangled && !common ? 1 : 0;
  }
  EXPECT_GT(accepted, 4000);
  EXPECT_GT(apart_though_entangled, 100);
}

TEST(FootprintTest, ContiguousIsOneRun) {
  const auto f = MakeFootprint(8, {3, 4, 5}, {40, 10, 2}, 2);
  ASSERT_TRUE(f.has_value());
  EXPECT_TRUE(f->dense());
  EXPECT_EQ(f->run, 120);
  EXPECT_EQ(f->length, 120);
}

TEST(FootprintTest, LengthsThatWrapAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_FALSE(MakeFootprint(0, {9}, {kHuge}, 2).has_value());
  EXPECT_TRUE(MakeFootprint(0, {2}, {kHuge}, 2).has_value());
}

TEST(FootprintTest, GivesUpWhenTheBudgetIsSpent) {
  // Runs of 2 bytes every 4 against runs of 2 bytes every 6: they meet only after some steps, or
  // never.
  const auto a = MakeFootprint(0, {1000}, {4}, 2);
  const auto b = MakeFootprint(2, {300}, {12}, 2);
  ASSERT_TRUE(a.has_value() && b.has_value());
  int64_t budget = 10;
  EXPECT_EQ(Overlap(*a, *b, budget), std::nullopt);
  budget = 10000;
  EXPECT_EQ(Overlap(*a, *b, budget), false);
  EXPECT_LT(budget, 10000);
}

}  // namespace
}  // namespace xfer
