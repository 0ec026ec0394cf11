#include "common/base/digest.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace xfer {
namespace {

std::vector<std::byte> RandomBytes(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(Digest, ChunksInAnyOrderSumToTheWhole) {
  const auto bytes = RandomBytes(10 * kDigestLeafBytes + 123, 1);
  const absl::Span<const std::byte> all(bytes);
  uint64_t sum = 0;
  for (size_t chunk : {size_t{6}, size_t{0}, size_t{3}, size_t{9}}) {
    const size_t begin = chunk * kDigestLeafBytes;
    const size_t length = chunk == 9 ? all.size() - begin : 3 * kDigestLeafBytes;
    sum += DigestRange(begin, all.subspan(begin, length));
  }
  EXPECT_EQ(sum, DigestRange(0, all));
}

TEST(Digest, SeesOneFlippedBitAnywhere) {
  auto bytes = RandomBytes(3 * kDigestLeafBytes + 7, 2);
  const uint64_t before = DigestRange(0, bytes);
  for (size_t at : {size_t{0}, size_t{4095}, size_t{4096}, bytes.size() - 1}) {
    bytes[at] ^= std::byte{0x10};
    EXPECT_NE(DigestRange(0, bytes), before) << at;
    bytes[at] ^= std::byte{0x10};
  }
}

TEST(Digest, SeesTwoLeavesExchanged) {
  auto bytes = RandomBytes(2 * kDigestLeafBytes, 3);
  const uint64_t before = DigestRange(0, bytes);
  std::swap_ranges(bytes.begin(), bytes.begin() + kDigestLeafBytes,
                   bytes.begin() + kDigestLeafBytes);
  EXPECT_NE(DigestRange(0, bytes), before);
}

}  // namespace
}  // namespace xfer
