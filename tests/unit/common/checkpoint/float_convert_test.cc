#include "common/base/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace xfer {
namespace {

template <typename T>
absl::Span<const std::byte> Bytes(const std::vector<T>& v) {
  return {reinterpret_cast<const std::byte*>(v.data()), v.size() * sizeof(T)};
}
template <typename T>
absl::Span<std::byte> Bytes(std::vector<T>& v) {
  return {reinterpret_cast<std::byte*>(v.data()), v.size() * sizeof(T)};
}

std::vector<uint16_t> EveryHalf() {
  std::vector<uint16_t> all(65536);
  for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

// What a half-wide number of `exponent_bits` means, from the definition of IEEE 754.
double Value(uint16_t h, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = h >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = h & ((1 << mantissa_bits) - 1);
  const double sign = (h & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

class HalfTypes : public testing::TestWithParam<DType> {
 protected:
  int exponent_bits() const { return GetParam() == DType::kBF16 ? 8 : 5; }
};

TEST_P(HalfTypes, WideningGivesTheVeryNumberAndComesBack) {
  const std::vector<uint16_t> half = EveryHalf();
  std::vector<float> wide(half.size());
  ConvertRun(GetParam(), DType::kF32, Bytes(half), Bytes(wide));
  for (size_t i = 0; i < half.size(); ++i) {
    const double expected = Value(half[i], exponent_bits());
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide[i])) << i;
    } else {
      ASSERT_EQ(double{wide[i]}, expected) << i;
      ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected)) << i;
    }
  }
  std::vector<uint16_t> back(half.size());
  ConvertRun(DType::kF32, GetParam(), Bytes(wide), Bytes(back));
  const uint16_t quiet = GetParam() == DType::kBF16 ? 0x40 : 0x200;
  for (size_t i = 0; i < half.size(); ++i) {
    const uint16_t expected = std::isnan(wide[i]) ? half[i] | quiet : half[i];
    ASSERT_EQ(back[i], expected) << i;
  }
}

TEST_P(HalfTypes, NarrowingRoundsToNearestEven) {
  // Between two neighbours: just below the middle, the middle, just above; the middle goes to the
  // even.
  const uint16_t infinity = GetParam() == DType::kBF16 ? 0x7f80 : 0x7c00;
  std::vector<float> in;
  std::vector<uint16_t> expected;
  for (uint16_t h = 0; h + 1 < infinity; ++h) {
    const auto low = static_cast<float>(Value(h, exponent_bits()));
    const auto high = static_cast<float>(Value(h + 1, exponent_bits()));
    // F32 has at least 13 bits more, so the middle is a number (but for BF16's subnormals it is a
    // subnormal of F32, which it can hold too).
    const float middle = static_cast<float>((double{low} + double{high}) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const uint16_t bit = sign < 0 ? 0x8000 : 0;
      in.push_back(sign * std::nextafter(middle, low));
      expected.push_back(h | bit);
      in.push_back(sign * middle);
      expected.push_back((h % 2 == 0 ? h : h + 1) | bit);
      in.push_back(sign * std::nextafter(middle, high));
      expected.push_back((h + 1) | bit);
    }
  }
  std::vector<uint16_t> out(in.size());
  ConvertRun(DType::kF32, GetParam(), Bytes(in), Bytes(out));
  for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], expected[i]) << i << " " << in[i];
}

TEST_P(HalfTypes, OverflowIsInfiniteAndNanStaysNan) {
  const uint16_t infinity = GetParam() == DType::kBF16 ? 0x7f80 : 0x7c00;
  const std::vector<float> in = {
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::max(),      -std::numeric_limits<float>::max(),
      std::bit_cast<float>(0x7f800001u),      std::bit_cast<float>(0xffffffffu)};
  std::vector<uint16_t> out(in.size());
  ConvertRun(DType::kF32, GetParam(), Bytes(in), Bytes(out));
  EXPECT_EQ(out[0], infinity);
  EXPECT_EQ(out[1], infinity | 0x8000);
  EXPECT_EQ(out[2], infinity);
  EXPECT_EQ(out[3], infinity | 0x8000);
  EXPECT_GT(out[4], infinity);
  EXPECT_LT(out[4], 0x8000);
  EXPECT_EQ(out[5], 0xffff);
}

TEST_P(HalfTypes, AnyLengthAndAddress) {
  std::mt19937 random(1);
  std::vector<float> wide(1000);
  for (float& f : wide) f = static_cast<float>(random()) / 1e9f - 2;
  std::vector<uint16_t> whole(wide.size());
  ConvertRun(DType::kF32, GetParam(), Bytes(wide), Bytes(whole));
  for (const size_t n : {0, 1, 7, 255, 256, 257, 999}) {
    std::vector<std::byte> src(4 * n + 1), dst(2 * n + 1, std::byte{0xaa});
    std::memcpy(src.data() + 1, wide.data(), 4 * n);
    ConvertRun(DType::kF32, GetParam(), absl::MakeConstSpan(src).subspan(1),
               absl::MakeSpan(dst).subspan(1));
    EXPECT_EQ(std::memcmp(dst.data() + 1, whole.data(), 2 * n), 0) << n;
    EXPECT_EQ(dst[0], std::byte{0xaa});
  }
}

INSTANTIATE_TEST_SUITE_P(All, HalfTypes, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& p) { return p.param == DType::kBF16 ? "BF16" : "F16"; });

TEST(Convert, KnowsWhatItCan) {
  EXPECT_TRUE(CanConvert(DType::kBF16, DType::kF32));
  EXPECT_TRUE(CanConvert(DType::kF32, DType::kF16));
  EXPECT_TRUE(CanConvert(DType::kI64, DType::kI64));
  EXPECT_FALSE(CanConvert(DType::kBF16, DType::kF16));
  EXPECT_FALSE(CanConvert(DType::kF8E4M3, DType::kF32));
  EXPECT_TRUE(ConversionIsExact(DType::kF16, DType::kF32));
  EXPECT_FALSE(ConversionIsExact(DType::kF32, DType::kF16));
}

}  // namespace
}  // namespace xfer
