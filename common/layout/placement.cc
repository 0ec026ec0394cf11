#include "common/layout/placement.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace xfer {

absl::StatusOr<Placement> PlaceContiguously(const RankLayout& layout, uint64_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement alignment is ", alignment, "; it takes a power of two"));
  }
  constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();
  Placement out;
  out.tensors.reserve(layout.tensors.size());
  uint64_t end = 0;
  for (const LocalTensor& tensor : layout.tensors) {
    const uint64_t offset = (end + alignment - 1) & ~(alignment - 1);
    uint64_t bytes = SizeOf(tensor.dtype);
    bool fits = offset >= end;
    for (int64_t extent : tensor.shape) {
      fits &= extent >= 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes);
    }
    fits &= !__builtin_add_overflow(offset, bytes, &end) && end <= kMaxBytes;
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " does not fit: the rank's tensors have more than ",
                       kMaxBytes, " bytes; give the model smaller shapes"));
    }
    out.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, /*region=*/0, offset, {}});
  }
  out.region_bytes = {end};
  return out;
}

}  // namespace xfer
