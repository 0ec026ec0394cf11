// The bytes that a strided tensor occupies, and whether two such sets share one.
#ifndef XFER_COMMON_LAYOUT_FOOTPRINT_H_
#define XFER_COMMON_LAYOUT_FOOTPRINT_H_

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "common/layout/box.h"

namespace xfer {

// Runs of `run` bytes; one at `offset`, repeated by each level in turn.
struct Footprint {
  struct Level {
    int64_t count;    // at least 2
    uint64_t stride;  // bytes, at least what one step of the inner levels spans
  };
  uint64_t offset = 0;
  uint64_t run = 0;
  absl::InlinedVector<Level, 2> levels;  // outermost (largest stride) first
  uint64_t length = 0;                   // from the first byte to behind the last

  bool dense() const { return levels.empty(); }
  int64_t runs() const;
};

// The bytes of a tensor of `shape` (every extent at least 1) whose elements have `element` bytes
// and whose steps are `strides` bytes (every one at least 1), the first element at `offset`.
// nullopt where a stride makes elements overlap (or cross each other, which no framework does), or
// where the length wraps. Dimensions that adjoin are merged.
std::optional<Footprint> MakeFootprint(uint64_t offset, const Dims& shape, const Dims& strides,
                                       int64_t element);

// Whether two footprints have a byte in common. Neither may wrap: offset + length fits. `budget` is
// what remains of the runs that may be walked; nullopt where it does not suffice.
std::optional<bool> Overlap(const Footprint& a, const Footprint& b, int64_t& budget);

}  // namespace xfer

#endif  // XFER_COMMON_LAYOUT_FOOTPRINT_H_
