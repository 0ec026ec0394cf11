#include "common/base/convert.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace xfer {
namespace {

constexpr uint32_t kInfinity = 0x7f80'0000;         // F32
constexpr uint32_t kExponentShift = 112u << 23;     // F32's exponent bias less F16's, in place
constexpr uint32_t kLeastNormalHalf = 0x3880'0000;  // 2^-14
constexpr uint32_t kHalfOverflow = 0x477f'f000;  // 65520, the least that rounds to F16's infinity

inline uint32_t FromBF16(uint16_t b) { return uint32_t{b} << 16; }

inline uint16_t ToBF16(uint32_t f) {
  const uint32_t rounded = (f + 0x7fff + ((f >> 16) & 1)) >> 16;
  const uint32_t nan = (f >> 16) | 0x40;
  return static_cast<uint16_t>((f & 0x7fff'ffff) > kInfinity ? nan : rounded);
}

inline uint32_t FromF16(uint16_t h) {
  const uint32_t magnitude = h & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + kExponentShift;
  // Infinity and NaN: the exponent becomes F32's all ones.
  const uint32_t special = normal + kExponentShift;
  // Subnormal: magnitude * 2^-24, a normal F32 (or zero), so no flush-to-zero mode changes it.
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  const uint32_t value = magnitude >= 0x7c00 ? special : magnitude < 0x400 ? subnormal : normal;
  return value | (uint32_t{h} & 0x8000) << 16;
}

inline uint16_t ToF16(uint32_t f) {
  const uint32_t magnitude = f & 0x7fff'ffff;
  const uint32_t normal = (magnitude - kExponentShift + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // The sum with 0.5 has a unit in the last place of 2^-24, F16's least subnormal: the adder
  // rounds.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude < kLeastNormalHalf ? magnitude : 0) +
                              0.5f) -
      std::bit_cast<uint32_t>(0.5f);
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const uint32_t value = magnitude > kInfinity          ? nan
                         : magnitude >= kHalfOverflow   ? 0x7c00
                         : magnitude < kLeastNormalHalf ? subnormal
                                                        : normal;
  return static_cast<uint16_t>(value | (f >> 16 & 0x8000));
}

// Goes through small aligned blocks, since tensors of a file may stand at any address and a memcpy
// of each element would keep the compiler from using vectors.
template <typename From, typename To, To (*convert)(From)>
void Convert(absl::Span<const std::byte> src, absl::Span<std::byte> dst) {
  constexpr size_t kBlock = 256;
  alignas(64) From in[kBlock];
  alignas(64) To out[kBlock];
  const size_t n = std::min(src.size() / sizeof(From), dst.size() / sizeof(To));
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = std::min(kBlock, n - at);
    std::memcpy(in, src.data() + at * sizeof(From), count * sizeof(From));
    for (size_t i = 0; i < count; ++i) out[i] = convert(in[i]);
    std::memcpy(dst.data() + at * sizeof(To), out, count * sizeof(To));
  }
}

}  // namespace

bool CanConvert(DType from, DType to) {
  const auto half = [](DType t) { return t == DType::kBF16 || t == DType::kF16; };
  return from == to || (half(from) && to == DType::kF32) || (from == DType::kF32 && half(to));
}

bool ConversionIsExact(DType from, DType to) {
  return CanConvert(from, to) && (from == to || to == DType::kF32);
}

void ConvertRun(DType from, DType to, absl::Span<const std::byte> src, absl::Span<std::byte> dst) {
  if (from == to) {
    if (!src.empty()) std::memcpy(dst.data(), src.data(), std::min(src.size(), dst.size()));
  } else if (from == DType::kBF16) {
    Convert<uint16_t, uint32_t, FromBF16>(src, dst);
  } else if (from == DType::kF16) {
    Convert<uint16_t, uint32_t, FromF16>(src, dst);
  } else if (to == DType::kBF16) {
    Convert<uint32_t, uint16_t, ToBF16>(src, dst);
  } else {
    Convert<uint32_t, uint16_t, ToF16>(src, dst);
  }
}

}  // namespace xfer
