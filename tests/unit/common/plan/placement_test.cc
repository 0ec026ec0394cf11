#include "common/layout/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xfer {
namespace {

LocalTensor Tensor(const char* name, DType dtype, Dims shape) {
  LocalTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  return tensor;
}

TEST(PlaceContiguously, AlignsEachTensor) {
  RankLayout layout;
  layout.tensors = {Tensor("a", DType::kBF16, {3, 50}), Tensor("b", DType::kF32, {1}),
                    Tensor("c", DType::kU8, {256})};
  absl::StatusOr<Placement> placement = PlaceContiguously(layout);
  ASSERT_TRUE(placement.ok()) << placement.status();
  ASSERT_EQ(placement->tensors.size(), 3u);
  EXPECT_EQ(placement->tensors[0].offset, 0u);
  EXPECT_EQ(placement->tensors[1].offset, 512u);
  EXPECT_EQ(placement->tensors[2].offset, 768u);
  EXPECT_EQ(placement->tensors[1].name, "b");
  EXPECT_EQ(placement->tensors[1].dtype, DType::kF32);
  EXPECT_THAT(placement->region_bytes, testing::ElementsAre(1024));
  placement = PlaceContiguously(layout, 4);
  EXPECT_EQ(placement->tensors[1].offset, 300u);
  EXPECT_THAT(placement->region_bytes, testing::ElementsAre(560));
}

TEST(PlaceContiguously, RefusesWhatDoesNotFit) {
  RankLayout layout;
  layout.tensors = {Tensor("a", DType::kF32, {1ll << 61, 1})};
  EXPECT_EQ(PlaceContiguously(layout).status().code(), absl::StatusCode::kInvalidArgument);
  layout.tensors = {Tensor("a", DType::kF32, {1ll << 40, 1ll << 40})};
  EXPECT_EQ(PlaceContiguously(layout).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PlaceContiguously({}, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PlaceContiguously({}, 24).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(PlaceContiguously({}).ok());
}

}  // namespace
}  // namespace xfer
