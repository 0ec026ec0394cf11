// One GPU through CUDA.
#ifndef XFER_AGENT_GPU_DEVICE_H_
#define XFER_AGENT_GPU_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "agent/gpu/gpu.h"
#include "agent/gpu/kernels.h"
#include "agent/gpu/lanes.h"

namespace xfer::gpu {

class CudaGpu final : public Gpu {
 public:
  CudaGpu(GpuInfo info, std::shared_ptr<PinnedPool> pinned)
      : info_(std::move(info)), pinned_(std::move(pinned)) {}

  const GpuInfo& info() const override { return info_; }
  absl::Status Pack(const Transfer& transfer, const std::byte* source, uint64_t begin, uint64_t end,
                    std::byte* out) override;
  absl::Status Unpack(const Transfer& transfer, std::byte* destination, uint64_t begin,
                      uint64_t end, const std::byte* in) override;
  absl::StatusOr<uint64_t> Digest(const Transfer& transfer, bool source_side, const std::byte* base,
                                  uint64_t begin, uint64_t end) override;
  absl::Status Convert(const Transfer& gather, DType from, DType to, const std::byte* source,
                       uint64_t begin, uint64_t end, std::byte* out) override;
  absl::StatusOr<PinnedBuffer> Staging(uint64_t bytes) override;

  // Both sides in memory that this GPU reaches.
  absl::Status Copy(const Transfer& transfer, const std::byte* source, std::byte* destination,
                    uint64_t begin, uint64_t end);
  // Whether this GPU reaches `other`'s memory; opens the way at the first call.
  bool Reaches(const CudaGpu& other);
  // Makes this GPU the calling thread's; its context is made at the first call.
  absl::Status Use();

 private:
  absl::Status Run(const Transfer& transfer, Form form, const std::byte* source,
                   std::byte* destination, uint64_t begin, uint64_t end, const char* what);
  std::string Say(const char* what) const;

  const GpuInfo info_;
  const std::shared_ptr<PinnedPool> pinned_;
  LanePool lanes_;
  absl::Mutex mu_;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  int multiprocessors_ = 0;  // written once, before ready_
  absl::flat_hash_map<int32_t, bool> reaches_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer::gpu

#endif  // XFER_AGENT_GPU_DEVICE_H_
