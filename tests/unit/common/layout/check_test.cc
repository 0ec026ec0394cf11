// CheckLayout finds every way in which a layout can be wrong.
#include "common/layout/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

class CheckLayoutTest : public ::testing::Test {
 protected:
  CheckLayoutTest() {
    table_.Add("w", DType::kBF16, {6, 4});
    table_.Add("e", DType::kBF16, {2, 4});
    // Rows 2 to 5 of w behind one row of e, and a row of padding.
    layout_.tensors.push_back(
        {.name = "local",
         .dtype = DType::kBF16,
         .shape = {6, 4},
         .parts = {{0, {{2, 0}, {4, 4}}, {1, 0}}, {1, {{0, 0}, {1, 4}}, {0, 0}}},
         .padding_elements = 4});
  }

  LocalTensor& local() { return layout_.tensors[0]; }
  void ExpectBroken(const char* message) {
    const absl::Status status = CheckLayout(layout_, table_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("layout of local: "));
    EXPECT_THAT(status.message(), HasSubstr(message));
  }

  TensorTable table_;
  RankLayout layout_;
};

TEST_F(CheckLayoutTest, AcceptsASoundLayout) {
  EXPECT_TRUE(CheckLayout(layout_, table_).ok()) << CheckLayout(layout_, table_);
}

TEST_F(CheckLayoutTest, AcceptsSlots) {
  local().shape = {2, 2, 4};
  local().parts = {{1, {{0, 0}, {2, 4}}, {1, 0, 0}}, {0, {{4, 0}, {2, 4}}, {0, 0, 0}}};
  local().padding_elements = 0;
  EXPECT_TRUE(CheckLayout(layout_, table_).ok()) << CheckLayout(layout_, table_);
}

TEST_F(CheckLayoutTest, UnknownTensor) {
  local().parts[0].tensor = 2;
  ExpectBroken("a part is of tensor 2 of 2");
  local().parts[0].tensor = -1;
  ExpectBroken("a part is of tensor -1 of 2");
}

TEST_F(CheckLayoutTest, WrongDimensions) {
  local().parts[0].hf.start.pop_back();
  ExpectBroken("a part of w has the wrong dimensions");
}

TEST_F(CheckLayoutTest, OutsideTheHuggingFaceTensor) {
  local().parts[0].hf.start[0] = 3;
  ExpectBroken("part [3:7, 0:4] is not inside w of shape 6 x 4");
  local().parts[0].hf.start[0] = -1;
  ExpectBroken("part [-1:3, 0:4] is not inside w");
}

TEST_F(CheckLayoutTest, OutsideTheLocalTensor) {
  local().parts[0].local_start[0] = 3;
  ExpectBroken("leaves the local shape 6 x 4");
}

TEST_F(CheckLayoutTest, AnEmptyPart) {
  local().parts[0].hf.extent[1] = 0;
  ExpectBroken("is not inside w");
}

TEST_F(CheckLayoutTest, OverlappingParts) {
  local().parts[1].local_start[0] = 4;
  ExpectBroken("parts at [1:5, 0:4] and [4:5, 0:4] overlap");
}

TEST_F(CheckLayoutTest, OverlapIsFoundAcrossColumns) {
  local().parts = {{0, {{0, 0}, {6, 3}}, {0, 0}}, {1, {{1, 2}, {1, 2}}, {5, 2}}};
  ExpectBroken("overlap");
}

TEST_F(CheckLayoutTest, AHole) {
  local().padding_elements = 0;
  ExpectBroken("parts have 20 elements and padding has 0, which does not fill the 24");
}

TEST_F(CheckLayoutTest, NoElement) {
  local().shape = {0, 4};
  ExpectBroken("it has no element");
}

}  // namespace
}  // namespace xfer
