// Geometry of boxes beyond common/layout/box.h.
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {

Box SharedBox(const Box& a, const Box& b) {
  Box out = a;
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t low = std::max(a.start[d], b.start[d]);
    out.extent[d] = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]) - low;
    out.start[d] = low;
  }
  return out;
}

int CompareBoxes(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.start.size(); ++d) {
    if (a.start[d] != b.start[d]) return a.start[d] < b.start[d] ? -1 : 1;
  }
  for (size_t d = 0; d < a.extent.size(); ++d) {
    if (a.extent[d] != b.extent[d]) return a.extent[d] < b.extent[d] ? -1 : 1;
  }
  return 0;
}

int CompareColumns(const Box& a, const Box& b) {
  for (size_t d = 1; d < a.start.size(); ++d) {
    if (a.start[d] != b.start[d]) return a.start[d] < b.start[d] ? -1 : 1;
    if (a.extent[d] != b.extent[d]) return a.extent[d] < b.extent[d] ? -1 : 1;
  }
  return CompareBoxes(a, b);
}

bool Stacks(const Box& a, const Box& b) {
  if (a.start.empty() || EndRow(a) != FirstRow(b)) return false;
  for (size_t d = 1; d < a.start.size(); ++d) {
    if (a.start[d] != b.start[d] || a.extent[d] != b.extent[d]) return false;
  }
  return true;
}

bool Disjoint(absl::Span<const Box* const> boxes) {
  // Sorted by first row; `open` are those that reach behind the present one's first row.
  std::vector<const Box*> open;
  for (const Box* box : boxes) {
    std::erase_if(open, [&](const Box* o) { return EndRow(*o) <= FirstRow(*box); });
    for (const Box* other : open) {
      if (SharedElements(*other, *box) > 0) return false;
    }
    open.push_back(box);
  }
  return true;
}

std::vector<Box> Union(std::vector<const Box*>& boxes) {
  std::sort(boxes.begin(), boxes.end(),
            [](const Box* a, const Box* b) { return CompareBoxes(*a, *b) < 0; });
  boxes.erase(
      std::unique(boxes.begin(), boxes.end(), [](const Box* a, const Box* b) { return *a == *b; }),
      boxes.end());
  std::vector<Box> out;
  if (boxes.size() == 1 || Disjoint(boxes)) {
    for (const Box* box : boxes) out.push_back(*box);
    return out;
  }
  for (const Box* box : boxes) {
    std::vector<Box> rest = {*box};
    for (size_t i = 0, end = out.size(); i < end; ++i) Remove(out[i], rest);
    for (Box& part : rest) out.push_back(std::move(part));
  }
  return out;
}

void Remove(const Box& box, std::vector<Box>& from) {
  for (size_t i = 0; i < from.size();) {
    if (SharedElements(from[i], box) == 0) {
      ++i;
      continue;
    }
    // What is left of a box never meets `box` again, so it may stand anywhere in the list.
    std::vector<Box> parts = Subtract(from[i], box);
    from[i] = std::move(from.back());
    from.pop_back();
    for (Box& part : parts) from.push_back(std::move(part));
  }
}

}  // namespace xfer::plan_internal
