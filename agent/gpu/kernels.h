// The kernels, as C++ code without CUDA's compiler calls them. All are queued on a stream and
// return at once; the result is cudaSuccess or why the launch failed.
#ifndef XFER_AGENT_GPU_KERNELS_H_
#define XFER_AGENT_GPU_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "agent/gpu/strided.h"

namespace xfer::gpu {

// Which sides of a copy are strided; the other one holds the range's bytes one behind the other
// from its start.
enum class Form : uint8_t { kStrided, kPack, kUnpack };

// Copies the range's bytes. Either side may be memory of this GPU, of a peer that it has access to,
// or pinned memory of the host. `multiprocessors` of the GPU, to size the launch.
cudaError_t LaunchCopy(const StridedRange& range, Form form, const std::byte* source,
                       std::byte* destination, int multiprocessors, cudaStream_t stream);

// Adds to *sum (in the GPU's memory) what the whole leaves of the range add to the digest:
// common/base/digest.h. range.begin is a multiple of the leaf's size; a part of a leaf at the end
// is left out. The source's offsets count from `base`.
cudaError_t LaunchDigest(const StridedRange& range, const std::byte* base, uint64_t* sum,
                         int multiprocessors, cudaStream_t stream);

enum class Cast : uint8_t { kBF16ToF32, kF16ToF32, kF32ToBF16, kF32ToF16 };

// Converts the range's elements (its offsets and bytes are of the source) into `out`, one behind
// the other.
cudaError_t LaunchCast(const StridedRange& range, Cast cast, const std::byte* source,
                       std::byte* out, int multiprocessors, cudaStream_t stream);

// Gives the current GPU the keys that LaunchDigest() needs there; once for each, before its first
// launch.
cudaError_t UploadLeafKeys();

}  // namespace xfer::gpu

#endif  // XFER_AGENT_GPU_KERNELS_H_
