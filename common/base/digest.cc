#include "common/base/digest.h"

#include <algorithm>

// xxh_x86dispatch.h picks the widest vector unit of the running machine.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace xfer {
namespace {

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t DigestLeaf(uint64_t leaf, absl::Span<const std::byte> bytes) {
  return Mix(XXH3_64bits(bytes.data(), bytes.size()) + (leaf + 1) * 0x9e3779b97f4a7c15u);
}

uint64_t DigestRange(uint64_t begin, absl::Span<const std::byte> bytes) {
  uint64_t sum = 0;
  uint64_t leaf = begin / kDigestLeafBytes;
  for (size_t at = 0; at < bytes.size(); at += kDigestLeafBytes, ++leaf) {
    sum += DigestLeaf(leaf, bytes.subspan(at, kDigestLeafBytes));
  }
  return sum;
}

}  // namespace xfer
