#include "common/checkpoint/values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <xxhash.h>

namespace xfer {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are defined on little-endian words");

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words.
inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline uint64_t Word(uint64_t key, uint64_t index) { return Mix(key + index * kGolden); }

// How the random bits of a word become numbers: (bits & keep | set) - subtract, lane by lane; no
// lane borrows from its neighbour since `set` is at least `subtract`. `change` are the bits that
// versions flip.
struct Lanes {
  uint64_t keep = ~uint64_t{0};
  uint64_t set = 0;
  uint64_t subtract = 0;
  uint64_t change = ~uint64_t{0};
};

constexpr uint64_t Every16(uint64_t x) { return x * 0x0001'0001'0001'0001u; }
constexpr uint64_t Every32(uint64_t x) { return x * 0x0000'0001'0000'0001u; }
constexpr uint64_t Every8(uint64_t x) { return x * 0x0101'0101'0101'0101u; }

// In each: sign, the low three exponent bits (F8: two) and the mantissa are random; the exponent's
// other bits are set so that, less one step, it lies in the range that the header states.
Lanes LanesOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {Every16(0x83ff), Every16(0x3c00), Every16(0x0080), Every16(0x807f)};
    case DType::kF16:
      return {Every16(0x9fff), Every16(0x2000), Every16(0x0400), Every16(0x83ff)};
    case DType::kF32:
      return {Every32(0x83ff'ffff), Every32(0x3c00'0000), Every32(0x0080'0000),
              Every32(0x807f'ffff)};
    case DType::kF64:
      return {0x807f'ffff'ffff'ffff, 0x3f80'0000'0000'0000, 0x0010'0000'0000'0000,
              0x800f'ffff'ffff'ffff};
    case DType::kF8E4M3:
      return {Every8(0x9f), Every8(0x20), 0, Every8(0x87)};
    case DType::kF8E5M2:
      return {Every8(0x8f), Every8(0x30), 0, Every8(0x83)};
    case DType::kBool:
      return {Every8(0x01), 0, 0, Every8(0x01)};
    default:
      return {};
  }
}

// Calls word(index) for each stream word that [begin, begin + run.size()) touches and apply(place,
// value, bytes) with the part of it that lies inside. Whole words take the short way.
template <typename WordFn>
inline void ForEachWord(uint64_t begin, absl::Span<std::byte> run, bool accumulate, WordFn word) {
  std::byte* at = run.data();
  size_t left = run.size();
  uint64_t index = begin / 8;
  const auto partial = [&](size_t skip, size_t bytes) {
    uint64_t value = word(index++) >> (8 * skip);
    uint64_t old = 0;
    if (accumulate) std::memcpy(&old, at, bytes);
    value ^= old;
    std::memcpy(at, &value, bytes);
    at += bytes;
    left -= bytes;
  };
  if (const size_t skip = begin % 8; skip != 0 && left != 0)
    partial(skip, std::min(left, 8 - skip));
  const size_t words = left / 8;
  if (accumulate) {
    for (size_t i = 0; i < words; ++i) {
      uint64_t value;
      std::memcpy(&value, at + 8 * i, 8);
      value ^= word(index + i);
      std::memcpy(at + 8 * i, &value, 8);
    }
  } else {
    for (size_t i = 0; i < words; ++i) {
      const uint64_t value = word(index + i);
      std::memcpy(at + 8 * i, &value, 8);
    }
  }
  index += words;
  at += 8 * words;
  left -= 8 * words;
  if (left != 0) partial(0, left);
}

uint64_t VersionKey(TensorKey key, uint64_t version) {
  return Mix(key.value ^ Mix(version * kGolden));
}

}  // namespace

TensorKey SeededKey(absl::string_view hf_name, uint64_t seed) {
  // The seed is mixed so that it never equals the fixed one of ChangeKey(): values and masks of a
  // tensor must not be related.
  return {XXH3_64bits_withSeed(hf_name.data(), hf_name.size(), Mix(seed + kGolden))};
}

TensorKey ChangeKey(absl::string_view hf_name) {
  return {Mix(XXH3_64bits_withSeed(hf_name.data(), hf_name.size(), 0x76657273'696f6e73u))};
}

void SynthesizeRun(TensorKey key, DType dtype, uint64_t first_element, absl::Span<std::byte> run) {
  const Lanes lanes = LanesOf(dtype);
  ForEachWord(first_element * static_cast<uint64_t>(SizeOf(dtype)), run, false,
              [&](uint64_t index) {
                return ((Word(key.value, index) & lanes.keep) | lanes.set) - lanes.subtract;
              });
}

void ChangeRun(TensorKey key, DType dtype, uint64_t first_element, absl::Span<std::byte> run,
               uint64_t from_version, uint64_t to_version) {
  if (from_version == to_version) return;
  const uint64_t change = LanesOf(dtype).change;
  const uint64_t begin = first_element * static_cast<uint64_t>(SizeOf(dtype));
  const uint64_t from = VersionKey(key, from_version);
  const uint64_t to = VersionKey(key, to_version);
  // Version 1 has no mask.
  if (from_version == 1 || to_version == 1) {
    const uint64_t only = from_version == 1 ? to : from;
    ForEachWord(begin, run, true, [&](uint64_t i) { return Word(only, i) & change; });
  } else {
    ForEachWord(begin, run, true,
                [&](uint64_t i) { return (Word(from, i) ^ Word(to, i)) & change; });
  }
}

}  // namespace xfer
