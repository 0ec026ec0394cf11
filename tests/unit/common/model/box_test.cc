#include "common/layout/box.h"

#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

// The flat numbers of a box's elements in a tensor of `shape`.
std::multiset<int64_t> ElementsOf(const Box& box, const Dims& shape) {
  std::multiset<int64_t> out;
  const int64_t n = box.NumElements();
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i;
    int64_t flat = 0;
    int64_t step = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      flat += (box.start[d] + rest % box.extent[d]) * step;
      rest /= box.extent[d];
      step *= shape[d];
    }
    out.insert(flat);
  }
  return out;
}

Box RandomBox(const Dims& shape, std::mt19937& rng) {
  Box box = Box::Whole(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    box.start[d] = std::uniform_int_distribution<int64_t>(0, shape[d] - 1)(rng);
    box.extent[d] = std::uniform_int_distribution<int64_t>(1, shape[d] - box.start[d])(rng);
  }
  return box;
}

TEST(BoxTest, Prints) {
  EXPECT_EQ((Box{{0, 512}, {128, 512}}).ToString(), "[0:128, 512:1024]");
  EXPECT_EQ((Box{{3}, {1}}).ToString(), "[3:4]");
}

TEST(BoxTest, CountsElements) {
  EXPECT_EQ(NumElements({3, 4, 5}), 60);
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(Box::Whole({7, 2}).NumElements(), 14);
}

TEST(BoxTest, IntersectAndSubtractAreThoseOfElementSets) {
  std::mt19937 rng(7);
  for (int round = 0; round < 3000; ++round) {
    Dims shape;
    for (int d = std::uniform_int_distribution<int>(1, 3)(rng); d > 0; --d) {
      shape.push_back(std::uniform_int_distribution<int64_t>(1, 6)(rng));
    }
    const Box a = RandomBox(shape, rng);
    const Box b = RandomBox(shape, rng);
    const std::multiset<int64_t> in_a = ElementsOf(a, shape);
    const std::multiset<int64_t> in_b = ElementsOf(b, shape);
    std::multiset<int64_t> both;
    std::multiset<int64_t> only_a;
    for (int64_t e : in_a) (in_b.count(e) != 0 ? both : only_a).insert(e);

    const std::optional<Box> common = Intersect(a, b);
    ASSERT_EQ(common.has_value(), !both.empty());
    if (common.has_value()) {
      ASSERT_EQ(ElementsOf(*common, shape), both);
    }
    // Equal as multisets: the boxes of the difference are disjoint too.
    std::multiset<int64_t> difference;
    for (const Box& box : Subtract(a, b)) {
      const std::multiset<int64_t> part = ElementsOf(box, shape);
      ASSERT_FALSE(part.empty());
      difference.insert(part.begin(), part.end());
    }
    ASSERT_EQ(difference, only_a) << a.ToString() << " - " << b.ToString();
  }
}

TEST(Box, AnEndThatWrapsIsShownAsItsExtent) {
  EXPECT_EQ((Box{{INT64_MAX, 0}, {3, 2}}.ToString()), "[9223372036854775807:+3, 0:2]");
}

}  // namespace
}  // namespace xfer
