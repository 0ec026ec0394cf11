#include "common/layout/box.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace xfer {

int64_t NumElements(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

std::string Box::ToString() const {
  std::string out = "[";
  for (size_t d = 0; d < start.size(); ++d) {
    absl::StrAppend(&out, d == 0 ? "" : ", ", start[d], ":");
    // A box that is about to be refused may have an end that wraps; say it as start:+extent.
    int64_t end;
    if (__builtin_add_overflow(start[d], extent[d], &end)) {
      absl::StrAppend(&out, "+", extent[d]);
    } else {
      absl::StrAppend(&out, end);
    }
  }
  return out + "]";
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  const size_t rank = a.start.size();
  Box out{Dims(rank), Dims(rank)};
  for (size_t d = 0; d < rank; ++d) {
    const int64_t first = std::max(a.start[d], b.start[d]);
    const int64_t last = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]);
    if (first >= last) return std::nullopt;
    out.start[d] = first;
    out.extent[d] = last - first;
  }
  return out;
}

std::vector<Box> Subtract(const Box& a, const Box& b) {
  if (a.NumElements() == 0) return {};
  const std::optional<Box> common = Intersect(a, b);
  if (!common.has_value()) return {a};
  // Peel slabs off dimension by dimension: what is left in `rest` after dimension d agrees with the
  // common part in dimensions 0 .. d.
  std::vector<Box> out;
  Box rest = a;
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t rest_end = rest.start[d] + rest.extent[d];
    const int64_t common_end = common->start[d] + common->extent[d];
    if (rest.start[d] < common->start[d]) {
      out.push_back(rest);
      out.back().extent[d] = common->start[d] - rest.start[d];
    }
    if (common_end < rest_end) {
      out.push_back(rest);
      out.back().start[d] = common_end;
      out.back().extent[d] = rest_end - common_end;
    }
    rest.start[d] = common->start[d];
    rest.extent[d] = common->extent[d];
  }
  return out;
}

}  // namespace xfer
