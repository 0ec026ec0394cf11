// Index boxes: half-open hyper-rectangles of a tensor's index space.
#ifndef XFER_COMMON_LAYOUT_BOX_H_
#define XFER_COMMON_LAYOUT_BOX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace xfer {

// One number per dimension, outermost first. Hugging Face tensors have one or two dimensions;
// framework tensors up to three (fused experts). kMaxDims bounds what is accepted from outside.
using Dims = absl::InlinedVector<int64_t, 3>;
inline constexpr int kMaxDims = 8;

// Elements of a tensor of shape `dims`: their product. Shapes are checked where they enter, so the
// product fits.
int64_t NumElements(const Dims& dims);

// [start, start + extent) in every dimension; a value type.
struct Box {
  Dims start;
  Dims extent;

  friend bool operator==(const Box&, const Box&) = default;

  int64_t NumElements() const { return xfer::NumElements(extent); }
  // "[0:128, 512:1024]"
  std::string ToString() const;

  static Box Whole(const Dims& shape) { return {Dims(shape.size(), 0), shape}; }
};

// The common part of two boxes of equal rank; nullopt where it is empty.
std::optional<Box> Intersect(const Box& a, const Box& b);

// `a` without `b` (equal rank), as disjoint boxes; empty where b covers a.
std::vector<Box> Subtract(const Box& a, const Box& b);

}  // namespace xfer

#endif  // XFER_COMMON_LAYOUT_BOX_H_
