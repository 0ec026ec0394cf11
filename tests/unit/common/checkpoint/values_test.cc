#include "common/checkpoint/values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "common/base/convert.h"

namespace xfer {
namespace {

constexpr DType kFloats[] = {DType::kBF16, DType::kF16,    DType::kF32,
                             DType::kF64,  DType::kF8E4M3, DType::kF8E5M2};

std::vector<std::byte> Synthesize(TensorKey key, DType dtype, uint64_t first, size_t elements) {
  std::vector<std::byte> out(elements * SizeOf(dtype));
  SynthesizeRun(key, dtype, first, absl::MakeSpan(out));
  return out;
}

// Whether `run` equals the part of `whole` that starts at byte `at`.
bool IsPartOf(const std::vector<std::byte>& run, const std::vector<std::byte>& whole, size_t at) {
  return std::equal(run.begin(), run.end(), whole.begin() + static_cast<ptrdiff_t>(at));
}

// BF16, F16 or F32 elements as numbers.
std::vector<float> ToFloat(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> out(bytes.size() / SizeOf(dtype));
  ConvertRun(dtype, DType::kF32, bytes,
             absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size() * 4));
  return out;
}

TEST(Values, AreFiniteAndOfTheStatedRange) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    int negative = 0;
    for (const float f : ToFloat(dtype, Synthesize(SeededKey("a", 1), dtype, 0, 100'000))) {
      ASSERT_TRUE(std::isfinite(f));
      ASSERT_GE(std::abs(f), std::ldexp(1.0f, -8)) << Name(dtype);
      ASSERT_LT(std::abs(f), 1.0f) << Name(dtype);
      negative += f < 0;
    }
    EXPECT_NEAR(negative, 50'000, 1'000);
  }
}

TEST(Values, ARunIsAPartOfTheWhole) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kI64}) {
    const int64_t size = SizeOf(dtype);
    const auto whole = Synthesize(SeededKey("t", 7), dtype, 0, 300);
    for (size_t first = 0; first < 20; ++first) {
      for (const size_t n : {0, 1, 2, 3, 5, 8, 64, 251}) {
        const auto run = Synthesize(SeededKey("t", 7), dtype, first, n);
        EXPECT_TRUE(IsPartOf(run, whole, first * size)) << Name(dtype) << " " << first << " " << n;
      }
    }
  }
}

TEST(Values, DependOnNameAndSeed) {
  const auto a = Synthesize(SeededKey("a", 1), DType::kBF16, 0, 1000);
  for (const TensorKey other : {SeededKey("b", 1), SeededKey("a", 2), ChangeKey("a")}) {
    const auto b = Synthesize(other, DType::kBF16, 0, 1000);
    int equal = 0;
    for (size_t i = 0; i < a.size(); i += 2) equal += std::memcmp(&a[i], &b[i], 2) == 0;
    EXPECT_LT(equal, 20);
  }
}

TEST(Values, DoNotRepeat) {
  std::set<uint64_t> words;
  const auto bytes = Synthesize(SeededKey("a", 1), DType::kI64, 0, 100'000);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, &bytes[i], 8);
    words.insert(word);
  }
  EXPECT_EQ(words.size(), 100'000u);
}

// Pins the values: checkpoints of an earlier build must stay what their seed says.
TEST(Values, StayTheSameFromBuildToBuild) {
  uint64_t word;
  std::memcpy(&word, Synthesize(SeededKey("model.norm.weight", 42), DType::kBF16, 4, 4).data(), 8);
  EXPECT_EQ(word, 0x3c42bdc53e263ba5u)
      << std::hex << word << "; raise kValuesVersion with a new value";
  auto zeros = std::vector<std::byte>(8);
  ChangeRun(ChangeKey("model.norm.weight"), DType::kBF16, 4, absl::MakeSpan(zeros), 2, 3);
  std::memcpy(&word, zeros.data(), 8);
  EXPECT_EQ(word, 0x00448028802a8078u)
      << std::hex << word << "; raise kValuesVersion with a new value";
}

TEST(Versions, StepsCompose) {
  for (const DType dtype : kFloats) {
    const auto original = Synthesize(SeededKey("a", 1), dtype, 0, 1001);
    const TensorKey key = ChangeKey("a");
    auto stepped = original;
    ChangeRun(key, dtype, 0, absl::MakeSpan(stepped), 1, 2);
    EXPECT_NE(stepped, original);
    ChangeRun(key, dtype, 0, absl::MakeSpan(stepped), 2, 5);
    auto direct = original;
    ChangeRun(key, dtype, 0, absl::MakeSpan(direct), 1, 5);
    EXPECT_EQ(stepped, direct) << Name(dtype);
    ChangeRun(key, dtype, 0, absl::MakeSpan(stepped), 5, 5);
    EXPECT_EQ(stepped, direct);
    ChangeRun(key, dtype, 0, absl::MakeSpan(stepped), 5, 1);
    EXPECT_EQ(stepped, original) << Name(dtype);
  }
}

TEST(Versions, ARunChangesAsAPartOfTheWhole) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E5M2}) {
    const int64_t size = SizeOf(dtype);
    const auto original = Synthesize(SeededKey("a", 1), dtype, 0, 200);
    auto whole = original;
    ChangeRun(ChangeKey("a"), dtype, 0, absl::MakeSpan(whole), 3, 8);
    for (size_t first = 0; first < 10; ++first) {
      for (const size_t n : {0, 1, 3, 4, 31, 190}) {
        std::vector<std::byte> run(original.begin() + first * size,
                                   original.begin() + (first + n) * size);
        ChangeRun(ChangeKey("a"), dtype, first, absl::MakeSpan(run), 3, 8);
        EXPECT_TRUE(IsPartOf(run, whole, first * size));
      }
    }
  }
}

TEST(Versions, DifferInAboutAllElementsAndStayFinite) {
  const size_t n = 50'000;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    std::vector<std::vector<std::byte>> versions;
    for (const uint64_t v : {1, 2, 3, 4, 1000}) {
      auto bytes = Synthesize(SeededKey("a", 1), dtype, 0, n);
      ChangeRun(ChangeKey("a"), dtype, 0, absl::MakeSpan(bytes), 1, v);
      for (const float f : ToFloat(dtype, bytes)) ASSERT_TRUE(std::isfinite(f));
      for (const auto& other : versions) {
        size_t differ = 0;
        for (size_t i = 0; i < bytes.size(); i += SizeOf(dtype)) {
          differ += std::memcmp(&bytes[i], &other[i], SizeOf(dtype)) != 0;
        }
        EXPECT_GT(differ, n * 99 / 100) << Name(dtype) << " " << v;
      }
      versions.push_back(std::move(bytes));
    }
  }
}

TEST(Versions, KeepTheExponent) {
  for (const auto& [dtype, exponent] : {std::pair{DType::kBF16, 0x7f80}, {DType::kF16, 0x7c00}}) {
    std::vector<std::byte> zeros(20'000);
    ChangeRun(ChangeKey("a"), dtype, 0, absl::MakeSpan(zeros), 1, 2);
    for (size_t i = 0; i < zeros.size(); i += 2) {
      uint16_t mask;
      std::memcpy(&mask, &zeros[i], 2);
      ASSERT_EQ(mask & exponent, 0);
    }
  }
}

}  // namespace
}  // namespace xfer
