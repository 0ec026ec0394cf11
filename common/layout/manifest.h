// A manifest: what one rank holds, with nothing left in it of the framework that holds it.
#ifndef XFER_COMMON_LAYOUT_MANIFEST_H_
#define XFER_COMMON_LAYOUT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/layout/box.h"
#include "common/layout/layout.h"

namespace xfer {

// `box` of Hugging Face tensor `tensor` lives in region `region` of the rank: its first element at
// `offset` bytes from the region's start, one step in dimension d being `strides[d]` bytes.
struct Piece {
  TensorId tensor = -1;
  Box box;
  DType dtype = DType::kBF16;
  int32_t region = 0;
  uint64_t offset = 0;
  Dims strides;
};

struct Manifest {
  std::vector<uint64_t> region_bytes;  // by region index
  std::vector<Piece> pieces;
  std::vector<std::string>
      fused_groups;  // by piece; empty string: none. Empty vector: none at all.

  // Bytes of model data the pieces stand for (padding is not in it).
  uint64_t bytes() const;
};

// Where a rank says one of its tensors is.
struct TensorPlacement {
  std::string name;  // framework's name
  DType dtype;
  Dims shape;  // elements
  int32_t region = 0;
  uint64_t offset = 0;  // bytes from the region's start to element 0
  Dims strides;         // bytes per step; empty: row-major without gaps. Negative or zero: refused.
};

// Joins what a rank says with what its layout requires. InvalidArgument names the tensor, the value
// and the remedy for: a tensor missing, extra, doubled, of another shape or dtype, with no element;
// a placement outside its region or whose offset + length wraps; overlapping placements; strides
// that overlap themselves.
absl::StatusOr<Manifest> BuildManifest(const TensorTable& table, const RankLayout& layout,
                                       absl::Span<const TensorPlacement> placements,
                                       absl::Span<const uint64_t> region_bytes);

}  // namespace xfer

#endif  // XFER_COMMON_LAYOUT_MANIFEST_H_
