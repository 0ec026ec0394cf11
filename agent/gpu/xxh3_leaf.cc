#include "agent/gpu/xxh3_leaf.h"

#include <cstring>

// The library's own secret; it is part of its implementation only.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace xfer::gpu {
namespace {

uint64_t Word(uint32_t at) {
  uint64_t word = 0;
  std::memcpy(&word, XXH3_kSecret + at, sizeof(word));
  return word;
}

LeafPair Pair(uint32_t at) { return {Word(at), Word(at + 8)}; }

}  // namespace

LeafKeys KeysOfLane(uint32_t lane) {
  constexpr LeafPair kStart[kLeafLanes] = {{kPrime32_3, kPrime64_1},
                                           {kPrime64_2, kPrime64_3},
                                           {kPrime64_4, kPrime32_2},
                                           {kPrime64_5, kPrime32_1}};
  constexpr uint32_t kSecretBytes = XXH_SECRET_DEFAULT_SIZE;
  LeafKeys keys = {};
  for (uint32_t n = 0; n <= kStripesPerBlock; ++n) keys.stripe[n] = Word((n + 2 * lane) * 8);
  keys.scramble = Pair(kSecretBytes - kStripeBytes + 16 * lane);
  keys.last = Pair(kSecretBytes - kStripeBytes - 7 + 16 * lane);
  keys.merge = Pair(11 + 16 * lane);
  keys.start = kStart[lane];
  return keys;
}

}  // namespace xfer::gpu
