// A layout applied to memory: what the shard writer, the rank emulator and the checker have in
// common.
//
// All functions work on one local tensor, whose memory is row-major without gaps, need no more
// memory than a few buffers of kilobytes, and are thread-safe; callers spread tensors over threads.
// Where the local type differs from the checkpoint's, values are converted with ConvertRun().
#ifndef XFER_COMMON_CHECKPOINT_SHARDS_H_
#define XFER_COMMON_CHECKPOINT_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/checkpoint/safetensors.h"
#include "common/layout/layout.h"
#include "common/model/tensor_table.h"

namespace xfer {

// Calls fn(hf_element, local_element, elements) for each run of a part that is contiguous on both
// sides, in row-major order; indices are linear, of the whole tensors. Requires a part that lies
// inside both tensors (see CheckLocalTensor).
void ForEachPartRun(const LocalTensor& local, const Part& part, const TensorInfo& hf,
                    absl::FunctionRef<void(uint64_t, uint64_t, uint64_t)> fn);

// Checks that every part lies inside both tensors, that their types can be converted and that
// `bytes` is the size of the local tensor. InvalidArgument names tensor, part and value.
absl::Status CheckLocalTensor(const LocalTensor& local, const TensorTable& table, uint64_t bytes);

// Fills `memory` with the tensor's share of the checkpoint at `version` (1: as it is, see
// ChangeRun()); padding becomes zero. InvalidArgument or NotFound where the checkpoint does not
// hold what the table says.
absl::Status FillFromCheckpoint(const LocalTensor& local, const TensorTable& table,
                                const Checkpoint& checkpoint, absl::Span<std::byte> memory,
                                uint64_t version = 1);

// Turns `memory` from one version into another, in place; padding is left alone. Unimplemented
// where the local type is narrower than the checkpoint's: the old value cannot be known from memory
// then.
absl::Status StepVersion(const LocalTensor& local, const TensorTable& table,
                         absl::Span<std::byte> memory, uint64_t from_version, uint64_t to_version);

// Compares every byte that a part covers with what the checkpoint at `version` says; padding is not
// looked at. DataLoss names the local tensor, the Hugging Face tensor, the first element that
// differs (index, expected and found bytes), and how many elements of the local tensor differ.
absl::Status CheckAgainstCheckpoint(const LocalTensor& local, const TensorTable& table,
                                    const Checkpoint& checkpoint, uint64_t version,
                                    absl::Span<const std::byte> memory);

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_SHARDS_H_
