// The tensors of a model under their Hugging Face names: the coordinate system that everything else
// (layouts, manifests, plans, digests) is expressed in.
#ifndef XFER_COMMON_MODEL_TENSOR_TABLE_H_
#define XFER_COMMON_MODEL_TENSOR_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/layout/box.h"
#include "common/model/dtype.h"

namespace xfer {

// Index of a tensor in its TensorTable.
using TensorId = int32_t;

struct TensorInfo {
  std::string name;  // Hugging Face name
  DType dtype;       // as the checkpoint stores it
  Dims shape;        // elements

  int64_t bytes() const { return NumElements(shape) * SizeOf(dtype); }
};

// Filled once, then read-only; reading is thread-safe.
class TensorTable {
 public:
  // Appends; the name must be new.
  TensorId Add(std::string name, DType dtype, Dims shape);

  int32_t size() const { return static_cast<int32_t>(tensors_.size()); }
  const TensorInfo& operator[](TensorId id) const { return tensors_[id]; }
  const std::vector<TensorInfo>& all() const { return tensors_; }
  // -1 where there is none.
  TensorId Find(absl::string_view name) const;
  int64_t total_bytes() const { return total_bytes_; }

 private:
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<std::string, TensorId> by_name_;
  int64_t total_bytes_ = 0;
};

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_TENSOR_TABLE_H_
