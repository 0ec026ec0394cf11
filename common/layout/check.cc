#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/layout/layout.h"

namespace xfer {
namespace {

absl::Status Broken(const LocalTensor& tensor, absl::string_view what) {
  return absl::InternalError(absl::StrCat("layout of ", tensor.name, ": ", what));
}

// The part's place in the local tensor; leading dimensions that the part does not have are 1 wide.
Box LocalBox(const Part& part) {
  Box out{part.local_start, Dims(part.local_start.size(), 1)};
  std::copy(part.hf.extent.begin(), part.hf.extent.end(), out.extent.end() - part.hf.extent.size());
  return out;
}

bool Inside(const Box& box, const Dims& shape) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.start[d] < 0 || box.extent[d] < 1 || box.start[d] > shape[d] - box.extent[d]) {
      return false;
    }
  }
  return true;
}

absl::Status CheckPart(const LocalTensor& tensor, const Part& part, const TensorTable& table) {
  if (part.tensor < 0 || part.tensor >= table.size()) {
    return Broken(tensor, absl::StrCat("a part is of tensor ", part.tensor, " of ", table.size()));
  }
  const TensorInfo& info = table[part.tensor];
  const size_t dims = info.shape.size();
  if (part.hf.start.size() != dims || part.hf.extent.size() != dims ||
      part.local_start.size() != tensor.shape.size() || tensor.shape.size() < dims) {
    return Broken(tensor, absl::StrCat("a part of ", info.name, " has the wrong dimensions"));
  }
  if (!Inside(part.hf, info.shape)) {
    return Broken(tensor, absl::StrCat("part ", part.hf.ToString(), " is not inside ", info.name,
                                       " of shape ", absl::StrJoin(info.shape, " x ")));
  }
  if (!Inside(LocalBox(part), tensor.shape)) {
    return Broken(tensor, absl::StrCat("part ", part.hf.ToString(), " of ", info.name, " at ",
                                       LocalBox(part).ToString(), " leaves the local shape ",
                                       absl::StrJoin(tensor.shape, " x ")));
  }
  return absl::OkStatus();
}

// Sweeps over the first dimension, so that slots and stacked rows cost one comparison each.
absl::Status CheckNoOverlap(const LocalTensor& tensor) {
  std::vector<Box> boxes;
  boxes.reserve(tensor.parts.size());
  for (const Part& part : tensor.parts) boxes.push_back(LocalBox(part));
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return a.start < b.start; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const int64_t end = boxes[i].start[0] + boxes[i].extent[0];
    for (size_t j = i + 1; j < boxes.size() && boxes[j].start[0] < end; ++j) {
      if (Intersect(boxes[i], boxes[j]).has_value()) {
        return Broken(tensor, absl::StrCat("parts at ", boxes[i].ToString(), " and ",
                                           boxes[j].ToString(), " overlap"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLayout(const RankLayout& layout, const TensorTable& table) {
  for (const LocalTensor& tensor : layout.tensors) {
    if (tensor.shape.empty() || *std::min_element(tensor.shape.begin(), tensor.shape.end()) < 1) {
      return Broken(tensor, "it has no element");
    }
    int64_t covered = 0;
    for (const Part& part : tensor.parts) {
      XFER_RETURN_IF_ERROR(CheckPart(tensor, part, table));
      covered += part.hf.NumElements();
    }
    XFER_RETURN_IF_ERROR(CheckNoOverlap(tensor));
    const int64_t elements = NumElements(tensor.shape);
    if (tensor.padding_elements < 0 || covered + tensor.padding_elements != elements) {
      return Broken(tensor, absl::StrCat("parts have ", covered, " elements and padding has ",
                                         tensor.padding_elements, ", which does not fill the ",
                                         elements, " of its shape"));
    }
  }
  return absl::OkStatus();
}

}  // namespace xfer
