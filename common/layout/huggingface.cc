// The checkpoint's own layout: every tensor whole, under its own name.
#include "common/base/status.h"
#include "common/layout/layout.h"

namespace xfer {

absl::StatusOr<RankLayout> HuggingFaceLayout(const ModelSpec& spec, const TensorTable& table) {
  XFER_RETURN_IF_ERROR(Validate(spec));
  RankLayout layout;
  layout.tensors.reserve(table.size());
  for (TensorId id = 0; id < table.size(); ++id) {
    const TensorInfo& info = table[id];
    layout.tensors.push_back({.name = info.name,
                              .dtype = info.dtype,
                              .shape = info.shape,
                              .parts = {{id, Box::Whole(info.shape), Dims(info.shape.size(), 0)}}});
  }
  return layout;
}

}  // namespace xfer
