#include "common/model/dtype.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 1; i <= 12; ++i) {
    const DType dtype = static_cast<DType>(i);
    const absl::StatusOr<DType> back = ParseDType(Name(dtype));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, dtype);
  }
}

TEST(DTypeTest, SizesAreThoseOfTheFormat) {
  EXPECT_EQ(SizeOf(DType::kBF16), 2);
  EXPECT_EQ(SizeOf(DType::kF16), 2);
  EXPECT_EQ(SizeOf(DType::kF32), 4);
  EXPECT_EQ(SizeOf(DType::kF8E4M3), 1);
  EXPECT_EQ(SizeOf(DType::kF8E5M2), 1);
  EXPECT_EQ(SizeOf(DType::kI8), 1);
  EXPECT_EQ(SizeOf(DType::kU8), 1);
  EXPECT_EQ(SizeOf(DType::kI32), 4);
  EXPECT_EQ(SizeOf(DType::kI64), 8);
  EXPECT_EQ(SizeOf(DType::kF64), 8);
  EXPECT_EQ(SizeOf(DType::kBool), 1);
  EXPECT_EQ(SizeOf(DType::kI16), 2);
}

TEST(DTypeTest, TakesTorchSpellings) {
  EXPECT_EQ(*ParseDType("bfloat16"), DType::kBF16);
  EXPECT_EQ(*ParseDType("torch.float32"), DType::kF32);
  EXPECT_EQ(*ParseDType("float8_e4m3fn"), DType::kF8E4M3);
}

TEST(DTypeTest, AnUnknownNameIsNamedWithTheKnownOnes) {
  const absl::Status status = ParseDType("BF17").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("\"BF17\""));
  EXPECT_THAT(status.message(), HasSubstr("BF16, F16, F32"));
}

}  // namespace
}  // namespace xfer
