// Hugging Face directories: checking one from outside against a model, and writing one.
#ifndef XFER_COMMON_CHECKPOINT_HF_DIRECTORY_H_
#define XFER_COMMON_CHECKPOINT_HF_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/model.h"
#include "common/model/tensor_table.h"

namespace xfer {

// Compares the shape-bearing fields of a config.json with the model's. InvalidArgument names
// `path`, the first field that differs and both values.
absl::Status CheckSameModel(const std::string& path, const HfConfig& found, const ModelSpec& spec);

// Opens a directory that claims to hold `spec`: config.json, and every tensor of `table` with its
// type and shape. With `cut`, `spec` is the first layers of the directory's model, whose later
// layers are ignored. Extra tensors are refused, but for multi-token-prediction layers,
// rotary_emb.inv_freq and the head of a model that ties it. InvalidArgument or NotFound names what
// differs.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfDirectory(const std::string& directory,
                                                            const ModelSpec& spec,
                                                            const TensorTable& table, bool cut);

// The files of a directory that is to be written: which tensors each has, in the table's order.
struct HfFile {
  std::string name;
  std::vector<TensorId> tensors;
};
// At most `max_file_bytes` of tensors a file, unless a single one has more.
std::vector<HfFile> PlanHfFiles(const TensorTable& table, uint64_t max_file_bytes);

// Writes config.json, the planned files and, where there are several, their index. `fill` is called
// from up to `threads` threads to write elements [first, ...) of a tensor; pieces have at most some
// megabytes. The directory exists and holds none of these files.
absl::Status WriteHfDirectory(
    const std::string& directory, const HfConfig& config, const TensorTable& table,
    const std::vector<HfFile>& files, int threads,
    absl::FunctionRef<absl::Status(TensorId, uint64_t first, absl::Span<std::byte>)> fill);

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_HF_DIRECTORY_H_
