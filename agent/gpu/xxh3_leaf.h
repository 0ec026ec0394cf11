// XXH3-64 of one whole digest leaf (4096 bytes, seed 0, the default secret), as four lanes compute
// it together; see the xxHash specification, "XXH3 algorithm for large inputs". Plain code without
// CUDA, so that it is tested on any machine against the library.
//
// Of the eight accumulators a lane keeps two that work on neighbouring words, because those
// exchange their inputs with each other and with no one else.
#ifndef XFER_AGENT_GPU_XXH3_LEAF_H_
#define XFER_AGENT_GPU_XXH3_LEAF_H_

#include <cstdint>

#include "agent/gpu/strided.h"

namespace xfer::gpu {

inline constexpr uint32_t kLeafBytes = 4096;
inline constexpr uint32_t kLeafLanes = 4;
inline constexpr uint32_t kStripeBytes = 64;
inline constexpr uint32_t kStripesPerBlock = 16;
inline constexpr uint32_t kBlocksPerLeaf = kLeafBytes / (kStripeBytes * kStripesPerBlock);

inline constexpr uint64_t kPrime32_1 = 0x9E3779B1u;
inline constexpr uint64_t kPrime32_2 = 0x85EBCA77u;
inline constexpr uint64_t kPrime32_3 = 0xC2B2AE3Du;
inline constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87u;
inline constexpr uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4Fu;
inline constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9u;
inline constexpr uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63u;
inline constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5u;

struct LeafPair {
  uint64_t first, second;
};

// A lane's words of the secret.
struct LeafKeys {
  uint64_t stripe[kStripesPerBlock + 1];  // stripe n uses words n and n + 1
  LeafPair scramble, last, merge;
  LeafPair start;  // of the accumulators
};

struct LeafLane {
  uint64_t first, second;  // accumulators

  // `words`: the lane's 16 bytes of a stripe.
  XFER_HOST_DEVICE void Accumulate(LeafPair words, uint64_t key_first, uint64_t key_second) {
    const uint64_t a = words.first ^ key_first;
    const uint64_t b = words.second ^ key_second;
    first += words.second + (a & 0xffff'ffffu) * (a >> 32);
    second += words.first + (b & 0xffff'ffffu) * (b >> 32);
  }
  XFER_HOST_DEVICE void Scramble(const LeafPair& key) {
    first = ((first ^ (first >> 47)) ^ key.first) * kPrime32_1;
    second = ((second ^ (second >> 47)) ^ key.second) * kPrime32_1;
  }
  // The lane's part of the sum that the leaf's hash is made of.
  XFER_HOST_DEVICE uint64_t Fold(const LeafPair& key) const {
    const uint64_t a = first ^ key.first;
    const uint64_t b = second ^ key.second;
#if defined(__CUDA_ARCH__)
    return a * b ^ __umul64hi(a, b);
#else
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
#endif
  }
};

// What leaf number `leaf` adds to the digest, from the sum of its lanes' folds
// (common/base/digest.cc).
XFER_HOST_DEVICE inline uint64_t FinishLeaf(uint64_t leaf, uint64_t folds) {
  uint64_t hash = uint64_t{kLeafBytes} * kPrime64_1 + folds;
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9u;
  hash ^= hash >> 32;
  uint64_t x = hash + (leaf + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// `load(stripe)` gives the lane's 16 bytes of stripe 0 to 63. Returns the lane's fold.
template <typename Load>
XFER_HOST_DEVICE inline uint64_t HashLane(const LeafKeys& keys, Load load) {
  LeafLane lane{keys.start.first, keys.start.second};
  LeafPair words = {0, 0};
  XFER_NO_UNROLL
  for (uint32_t block = 0; block < kBlocksPerLeaf; ++block) {
#if defined(__CUDA_ARCH__)
    LeafPair stripes[kStripesPerBlock];  // all loads are under way before the first is used
    XFER_UNROLL
    for (uint32_t n = 0; n < kStripesPerBlock; ++n) stripes[n] = load(block * kStripesPerBlock + n);
#endif
    XFER_UNROLL
    for (uint32_t n = 0; n < kStripesPerBlock; ++n) {
#if defined(__CUDA_ARCH__)
      words = stripes[n];
#else
      words = load(block * kStripesPerBlock + n);
#endif
      // The leaf's last stripe has keys of its own, and no scrambling after it.
      if (block + 1 == kBlocksPerLeaf && n + 1 == kStripesPerBlock) break;
      lane.Accumulate(words, keys.stripe[n], keys.stripe[n + 1]);
    }
    if (block + 1 < kBlocksPerLeaf) lane.Scramble(keys.scramble);
  }
  lane.Accumulate(words, keys.last.first, keys.last.second);
  return lane.Fold(keys.merge);
}

// The keys of lane 0 to 3.
LeafKeys KeysOfLane(uint32_t lane);

}  // namespace xfer::gpu

#endif  // XFER_AGENT_GPU_XXH3_LEAF_H_
