#include "agent/exec/transfer_digest.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/base/digest.h"

namespace xfer {
namespace {

std::vector<std::byte> RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

// The stream as one piece of memory, taken byte run by byte run.
std::vector<std::byte> Stream(const Transfer& transfer, const std::byte* source) {
  std::vector<std::byte> stream;
  ForEachRun(transfer, 0, transfer.bytes, [&](uint64_t from, uint64_t, uint64_t bytes) {
    stream.insert(stream.end(), source + from, source + from + bytes);
  });
  return stream;
}

void Apply(const Transfer& transfer, const std::byte* source, std::byte* destination) {
  ForEachRun(transfer, 0, transfer.bytes, [&](uint64_t from, uint64_t to, uint64_t bytes) {
    memcpy(destination + to, source + from, bytes);
  });
}

Transfer Strided(uint64_t run, uint64_t count, int64_t source_stride, int64_t destination_stride) {
  Transfer transfer;
  Copy& copy = transfer.copies.emplace_back();
  copy.source_offset = 3;
  copy.destination_offset = 5;
  copy.run = run;
  copy.levels.push_back({count, source_stride, destination_stride});
  transfer.bytes = copy.bytes();
  return transfer;
}

class TransferDigestTest : public testing::TestWithParam<Transfer> {};

TEST_P(TransferDigestTest, BothSidesAndAnyCutGiveTheStreamsDigest) {
  const Transfer& transfer = GetParam();
  const std::vector<std::byte> source = RandomBytes(1 << 20, 1);
  std::vector<std::byte> destination = RandomBytes(1 << 20, 2);
  Apply(transfer, source.data(), destination.data());
  const uint64_t expected = DigestRange(0, Stream(transfer, source.data()));
  EXPECT_EQ(DigestOfTransfer(transfer, TransferSide::kSource, source.data(), 0, transfer.bytes),
            expected);
  EXPECT_EQ(
      DigestOfTransfer(transfer, TransferSide::kDestination, destination.data(), 0, transfer.bytes),
      expected);
  for (uint64_t chunk : {1, 3, 16}) {
    const uint64_t step = chunk * kDigestLeafBytes;
    uint64_t sum = 0;
    for (uint64_t at = 0; at < transfer.bytes; at += step) {
      sum += DigestOfTransfer(transfer, TransferSide::kDestination, destination.data(), at,
                              std::min(at + step, transfer.bytes));
    }
    EXPECT_EQ(sum, expected) << chunk;
  }
  // One bit is noticed, wherever it is.
  uint64_t last = 0;
  ForEachRun(transfer, transfer.bytes - 1, transfer.bytes,
             [&](uint64_t, uint64_t to, uint64_t) { last = to; });
  destination[last] ^= std::byte{1};
  EXPECT_NE(
      DigestOfTransfer(transfer, TransferSide::kDestination, destination.data(), 0, transfer.bytes),
      expected);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TransferDigestTest,
    testing::Values(Strided(100'000, 1, 0, 0),      // one run
                    Strided(1, 1, 0, 0),            // one byte
                    Strided(4096, 3, 4096, 8192),   // contiguous source
                    Strided(256, 1000, 300, 256),   // contiguous destination, short runs
                    Strided(7, 3001, 11, 13),       // odd and strided on both sides
                    Strided(6000, 20, 6100, 7000),  // runs longer than a leaf
                    Strided(kDigestLeafBytes, 64, kDigestLeafBytes, kDigestLeafBytes)));

}  // namespace
}  // namespace xfer
