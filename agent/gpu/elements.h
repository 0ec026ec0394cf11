// Conversion of single elements, the twin of common/base/convert.cc: the same result for every bit
// pattern. Plain code without CUDA, so that it is tested on any machine.
#ifndef XFER_AGENT_GPU_ELEMENTS_H_
#define XFER_AGENT_GPU_ELEMENTS_H_

#include <cstdint>

#include "agent/gpu/strided.h"

namespace xfer::gpu {

XFER_HOST_DEVICE inline uint32_t F32FromBF16(uint16_t b) { return uint32_t{b} << 16; }

XFER_HOST_DEVICE inline uint16_t BF16FromF32(uint32_t f) {
  if ((f & 0x7fff'ffffu) > 0x7f80'0000u) return static_cast<uint16_t>((f >> 16) | 0x40u);
  return static_cast<uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
}

XFER_HOST_DEVICE inline uint32_t F32FromF16(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 0x1fu;
  uint32_t fraction = h & 0x3ffu;
  if (exponent == 0x1fu) return sign | 0x7f80'0000u | fraction << 13;
  if (exponent == 0) {
    if (fraction == 0) return sign;
    exponent = 1;
    while ((fraction & 0x400u) == 0) {
      fraction <<= 1;
      --exponent;  // wraps below 0, and the sum that follows wraps back
    }
    fraction &= 0x3ffu;
  }
  return sign | (exponent + 112u) << 23 | fraction << 13;
}

XFER_HOST_DEVICE inline uint16_t F16FromF32(uint32_t f) {
  const uint32_t sign = (f >> 16) & 0x8000u;
  const uint32_t magnitude = f & 0x7fff'ffffu;
  if (magnitude > 0x7f80'0000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477f'f000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude >= 0x3880'0000u) {                                              // 2^-14 and more
    const uint32_t rounded = magnitude - 0x3800'0000u + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | rounded >> 13);
  }
  // Subnormal: a multiple of 2^-24, rounded to nearest, ties to even.
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102u) return static_cast<uint16_t>(sign);  // below 2^-25
  const uint32_t fraction = (magnitude & 0x7f'ffffu) | 0x80'0000u;
  const uint32_t shift = 126u - exponent;  // 14 to 24
  const uint32_t whole = fraction >> shift;
  const uint32_t rest = fraction & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  return static_cast<uint16_t>(sign | (whole + (rest > half || (rest == half && (whole & 1u)))));
}

}  // namespace xfer::gpu

#endif  // XFER_AGENT_GPU_ELEMENTS_H_
