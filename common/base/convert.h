// Element-wise conversion between floating types, the same bit for bit wherever it is done: the
// executor that converts on the way, its GPU twin, and the checker that computes what should have
// arrived.
#ifndef XFER_COMMON_BASE_CONVERT_H_
#define XFER_COMMON_BASE_CONVERT_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/model/dtype.h"

namespace xfer {

// True for equal types, BF16 <-> F32 and F16 <-> F32.
bool CanConvert(DType from, DType to);

// True where converting to `to` and back gives every value of `from` again.
bool ConversionIsExact(DType from, DType to);

// Converts the elements of `src` into `dst`, which must hold as many elements and must not overlap
// it. Neither need be aligned. Requires CanConvert(from, to). Narrowing rounds to nearest, ties to
// even; overflow becomes infinity; a NaN stays a NaN, with its sign and the top bits of its
// payload, and is made quiet. Widening is exact. Thread-safe.
void ConvertRun(DType from, DType to, absl::Span<const std::byte> src, absl::Span<std::byte> dst);

}  // namespace xfer

#endif  // XFER_COMMON_BASE_CONVERT_H_
