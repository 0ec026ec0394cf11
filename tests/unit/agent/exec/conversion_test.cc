#include "agent/exec/conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/base/convert.h"
#include "common/base/digest.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

// Rows of `row` BF16 elements out of a matrix of `pitch` columns, to rows of F32 with a pitch of
// their own.
Transfer Widening(uint64_t rows, uint64_t row, uint64_t pitch, uint64_t destination_pitch) {
  Transfer transfer;
  transfer.conversion = {DType::kBF16, DType::kF32};
  Copy& copy = transfer.copies.emplace_back();
  copy.source_offset = 2 * 5;
  copy.destination_offset = 4 * 3;
  copy.run = row * 4;
  copy.levels.push_back(
      {rows, static_cast<int64_t>(pitch * 2), static_cast<int64_t>(destination_pitch * 4)});
  transfer.bytes = copy.bytes();
  return transfer;
}

TEST(Conversion, StagesTheStreamChunkByChunk) {
  constexpr uint64_t kRows = 70, kRow = 33, kPitch = 41;
  const Transfer transfer = Widening(kRows, kRow, kPitch, 50);
  std::vector<uint16_t> source(kRows * kPitch + 64);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint16_t>(0x3f80 + i * 7);
  const auto* base = reinterpret_cast<const std::byte*>(source.data());
  ASSERT_TRUE(CheckTransfer(transfer, source.size() * 2, 1 << 20).ok());
  auto converted = SplitConversion(transfer);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_TRUE(CheckTransfer((*converted)->wire, transfer.bytes, 1 << 20).ok());
  EXPECT_TRUE(CheckTransfer((*converted)->gather, source.size() * 2, transfer.bytes / 2).ok());

  // What should arrive, element by element.
  std::vector<uint32_t> expected;
  for (uint64_t r = 0; r < kRows; ++r) {
    for (uint64_t c = 0; c < kRow; ++c) {
      expected.push_back(static_cast<uint32_t>(source[5 + r * kPitch + c]) << 16);
    }
  }
  std::vector<std::byte> stream(transfer.bytes);
  for (uint64_t at = 0; at < transfer.bytes; at += kDigestLeafBytes) {
    const uint64_t end = std::min(at + kDigestLeafBytes, transfer.bytes);
    ConvertRange(transfer, **converted, base, at, end,
                 absl::MakeSpan(stream).subspan(at, end - at));
  }
  EXPECT_EQ(memcmp(stream.data(), expected.data(), transfer.bytes), 0);
}

TEST(Conversion, NarrowsToo) {
  Transfer transfer = Widening(3, 8, 8, 8);
  transfer.conversion = {DType::kF32, DType::kBF16};
  Copy& copy = transfer.copies[0];
  copy.source_offset = 0;
  copy.run = 8 * 2;
  copy.levels[0] = {3, 40, 16};
  transfer.bytes = copy.bytes();
  auto converted = SplitConversion(transfer);
  ASSERT_TRUE(converted.ok());
  std::vector<float> source(64);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i);
  std::vector<std::byte> out(transfer.bytes);
  ConvertRange(transfer, **converted, reinterpret_cast<const std::byte*>(source.data()), 0,
               transfer.bytes, absl::MakeSpan(out));
  std::vector<std::byte> row(16);
  for (size_t r = 0; r < 3; ++r) {
    ConvertRun(DType::kF32, DType::kBF16,
               {reinterpret_cast<const std::byte*>(source.data()) + r * 40, 32},
               absl::MakeSpan(row));
    EXPECT_EQ(memcmp(out.data() + r * 16, row.data(), 16), 0) << r;
  }
}

TEST(Conversion, RefusesUnknownPairsByName) {
  Transfer transfer = Widening(1, 8, 8, 8);
  transfer.conversion = {DType::kBF16, DType::kF8E4M3};
  const absl::Status status = SplitConversion(transfer).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("BF16 to F8_E4M3"));
}

}  // namespace
}  // namespace xfer
