// GPU memory of other processes in this one's address space.
#ifndef XFER_AGENT_GPU_MAPPING_H_
#define XFER_AGENT_GPU_MAPPING_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "agent/gpu/device.h"
#include "common/cuda/driver.h"

namespace xfer::gpu {

// A whole allocation, or a range of segments; unmapped when destroyed.
class MappedRange {
 public:
  virtual ~MappedRange() = default;
  virtual CUdeviceptr base() const = 0;
  virtual uint64_t bytes() const = 0;
};

// A process may open a handle once only; regions of one allocation share it. Thread-safe.
class IpcRanges {
 public:
  // `gpu` must be current. InvalidArgument: the handle is none of a living process's.
  absl::StatusOr<std::shared_ptr<MappedRange>> Open(const CudaDriver& driver, CudaGpu* gpu,
                                                    const std::string& handle);

 private:
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::weak_ptr<MappedRange>> open_ ABSL_GUARDED_BY(mu_);
};

// Maps segments one behind the other, readable and writable by `gpu` and by the other `devices`
// GPUs that reach it. `gpu` must be current.
absl::StatusOr<std::shared_ptr<MappedRange>> MapSegments(
    const CudaDriver& driver, CudaGpu* gpu, int devices,
    const std::vector<GpuExport::Segment>& segments);

}  // namespace xfer::gpu

#endif  // XFER_AGENT_GPU_MAPPING_H_
