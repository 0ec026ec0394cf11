// Layouts: which boxes of which Hugging Face tensors a rank holds, and where inside its own
// tensors.
//
// An ecosystem (Megatron, sglang, Hugging Face itself) is one function from (model, parallelism,
// rank) to a RankLayout. Everything that must know a layout (manifests, the emulated ranks, the
// checker, the checkpoint converter) reads this one description; nothing else encodes a layout
// rule.
#ifndef XFER_COMMON_LAYOUT_LAYOUT_H_
#define XFER_COMMON_LAYOUT_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout/box.h"
#include "common/model/dtype.h"
#include "common/model/model.h"
#include "common/model/tensor_table.h"

namespace xfer {

// Box `hf` of Hugging Face tensor `tensor` stands in a local tensor, its first element at index
// `local_start`. The box's dimensions are the local tensor's last ones, in order; leading local
// dimensions (an expert slot) have extent 1 here.
struct Part {
  TensorId tensor = -1;
  Box hf;
  Dims local_start;
};

// One tensor as the framework names it on one rank.
struct LocalTensor {
  std::string name;  // the framework's name, local to the rank
  DType dtype;       // as this rank holds it; may differ from the checkpoint's
  Dims shape;        // local shape, elements
  std::vector<Part> parts;
  int64_t padding_elements = 0;  // elements that no part covers (vocabulary padding)
  // Atomic update unit: tensors of one rank with equal non-empty groups are applied together.
  std::string fused_group;
};

struct RankLayout {
  std::vector<LocalTensor> tensors;
};

// Position of a training rank in Megatron's two grids.
struct MegatronCoordinates {
  int32_t tp = 0, cp = 0, dp = 0, pp = 0;
  int32_t etp = 0, ep = 0, edp = 0;
};
MegatronCoordinates MegatronCoordinatesOf(const TrainParallelism& train, int32_t rank);
// [first, last) layers of a pipeline stage. The numbers must have passed Validate().
std::pair<int64_t, int64_t> StageLayers(const HfConfig& config, const TrainParallelism& train,
                                        int32_t pp);

// What training rank `rank` of `spec.train` holds. `table` must be BuildTensorTable(spec.config).
// InvalidArgument where the rank is out of range or the profile does not fit (see Validate).
absl::StatusOr<RankLayout> MegatronLayout(const ModelSpec& spec, const TensorTable& table,
                                          int32_t rank);
// What rank `rank` (0 .. gpus_per_engine - 1) of any engine holds.
absl::StatusOr<RankLayout> SglangLayout(const ModelSpec& spec, const TensorTable& table,
                                        int32_t rank);
// Every tensor whole, under its own name.
absl::StatusOr<RankLayout> HuggingFaceLayout(const ModelSpec& spec, const TensorTable& table);

// Checks a layout against its table: parts inside both tensors, no two parts of a local tensor
// overlap, and parts plus padding fill it. Internal where a layout function is wrong.
absl::Status CheckLayout(const RankLayout& layout, const TensorTable& table);

}  // namespace xfer

#endif  // XFER_COMMON_LAYOUT_LAYOUT_H_
