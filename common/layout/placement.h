// Where tensors of a layout may stand, for ranks whose memory nobody has allocated yet.
#ifndef XFER_COMMON_LAYOUT_PLACEMENT_H_
#define XFER_COMMON_LAYOUT_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/layout/manifest.h"

namespace xfer {

inline constexpr uint64_t kPlacementAlignment = 256;  // bytes; what CUDA's allocators keep, too

struct Placement {
  std::vector<TensorPlacement> tensors;  // in the order of the layout
  std::vector<uint64_t> region_bytes;    // one region
};

// Places all tensors of a layout one behind another in one region, each packed row-major and
// starting at a multiple of `alignment` bytes (a power of two). InvalidArgument: an alignment that
// is none, a layout larger than 2^63 bytes.
absl::StatusOr<Placement> PlaceContiguously(const RankLayout& layout,
                                            uint64_t alignment = kPlacementAlignment);

}  // namespace xfer

#endif  // XFER_COMMON_LAYOUT_PLACEMENT_H_
