// What agent/gpu is where CUDA is not built in.
#include "agent/gpu/gpu.h"

namespace xfer {
namespace {

absl::Status NotBuilt() {
  return absl::UnimplementedError(
      "this agent was built without CUDA: build it where nvcc is found (cmake -DXFER_CUDA=ON), or "
      "keep the "
      "weights in host memory");
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuSystem>> OpenGpus(const GpuOptions&) { return NotBuilt(); }

absl::Status GpuCopy(const Transfer&, const Place&, const Transfer&, const Place&, uint64_t,
                     uint64_t) {
  return NotBuilt();
}

}  // namespace xfer
