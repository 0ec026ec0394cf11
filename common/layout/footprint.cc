#include "common/layout/footprint.h"

#include <algorithm>

namespace xfer {
namespace {

// Walks the runs in the order of their offsets.
class RunWalk {
 public:
  explicit RunWalk(const Footprint& f) : f_(f), at_(f.levels.size(), 0), begin_(f.offset) {}

  bool done() const { return done_; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return begin_ + f_.run; }
  void Next() {
    for (size_t d = f_.levels.size(); d-- > 0;) {
      const Footprint::Level& level = f_.levels[d];
      begin_ += level.stride;
      if (++at_[d] < level.count) return;
      begin_ -= level.count * level.stride;
      at_[d] = 0;
    }
    done_ = true;
  }

 private:
  const Footprint& f_;
  absl::InlinedVector<int64_t, 2> at_;
  uint64_t begin_;
  bool done_ = false;
};

// Views into one larger matrix have equal strides: then they lie apart if their runs do within one
// stride.
bool ApartWithinStride(const Footprint& a, const Footprint& b) {
  if (a.levels.size() != 1 || b.levels.size() != 1) return false;
  const uint64_t stride = a.levels[0].stride;
  if (b.levels[0].stride != stride) return false;
  const uint64_t from_a_to_b = (stride + b.offset % stride - a.offset % stride) % stride;
  return from_a_to_b >= a.run && from_a_to_b + b.run <= stride;
}

}  // namespace

int64_t Footprint::runs() const {
  int64_t n = 1;
  for (const Level& level : levels) n *= level.count;
  return n;
}

std::optional<Footprint> MakeFootprint(uint64_t offset, const Dims& shape, const Dims& strides,
                                       int64_t element) {
  absl::InlinedVector<Footprint::Level, 4> dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) dims.push_back({shape[d], static_cast<uint64_t>(strides[d])});
  }
  std::sort(dims.begin(), dims.end(),
            [](const auto& a, const auto& b) { return a.stride < b.stride; });
  Footprint out{.offset = offset, .run = static_cast<uint64_t>(element)};
  out.length = out.run;
  for (const Footprint::Level& dim : dims) {
    if (dim.stride < out.length) return std::nullopt;
    const bool adjoins = out.dense() && dim.stride == out.run;
    uint64_t reach = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(dim.count - 1), dim.stride, &reach) ||
        __builtin_add_overflow(reach, out.length, &out.length)) {
      return std::nullopt;
    }
    if (adjoins) {
      out.run = out.length;
    } else {
      out.levels.insert(out.levels.begin(), dim);
    }
  }
  return out;
}

std::optional<bool> Overlap(const Footprint& a, const Footprint& b, int64_t& budget) {
  if (a.offset + a.length <= b.offset || b.offset + b.length <= a.offset) return false;
  if (a.dense() && b.dense()) return true;
  if (ApartWithinStride(a, b)) return false;
  RunWalk x(a);
  RunWalk y(b);
  while (!x.done() && !y.done()) {
    if (budget-- <= 0) return std::nullopt;
    if (x.end() <= y.begin()) {
      x.Next();
    } else if (y.end() <= x.begin()) {
      y.Next();
    } else {
      return true;
    }
  }
  return false;
}

}  // namespace xfer
