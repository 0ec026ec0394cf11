// What one call to a GPU needs, made once and used again: a stream, an event, and a little memory
// for descriptors and results; and pinned memory of the host.
#ifndef XFER_AGENT_GPU_LANES_H_
#define XFER_AGENT_GPU_LANES_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "agent/gpu/gpu.h"
#include "agent/gpu/strided.h"

namespace xfer::gpu {

// OK, or `what` with CUDA's name and words for the error.
absl::Status CudaStatus(cudaError_t error, const std::string& what);

// For one thread at a time, on the GPU that was current when it was made.
class Lane {
 public:
  static absl::StatusOr<std::unique_ptr<Lane>> Create();
  ~Lane();

  cudaStream_t stream() const { return stream_; }
  // In the GPU's memory, and its copy in the host's.
  uint64_t* sum() const { return sum_; }
  uint64_t* host_sum() const { return host_sum_; }
  // Pinned, kDigestLeafBytes.
  std::byte* leaf() const { return leaf_; }

  // The part of a transfer's copies that stream bytes [begin, end) touch; where it takes a table,
  // that is sent to the GPU on the stream. Valid until the next call. `swap`: source and
  // destination change places, so that what reads the source reads the destination.
  absl::StatusOr<StridedRange> Describe(const Transfer& transfer, uint64_t begin, uint64_t end,
                                        bool swap = false);

  // Waits until everything on the stream is done. A GPU that hangs is the driver's to end.
  absl::Status Wait(const std::string& what);

 private:
  Lane() = default;
  absl::Status Reserve(size_t copies);

  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  uint64_t* sum_ = nullptr;
  uint64_t* host_sum_ = nullptr;
  std::byte* leaf_ = nullptr;
  StridedCopy* table_ = nullptr;       // in the GPU's memory
  StridedCopy* host_table_ = nullptr;  // pinned
  size_t capacity_ = 0;                // copies
  std::vector<StridedCopy> copies_;
};

// Lanes of one GPU. Thread-safe.
class LanePool {
 public:
  class Lease {
   public:
    Lease(LanePool* pool, std::unique_ptr<Lane> lane) : pool_(pool), lane_(std::move(lane)) {}
    Lease(Lease&&) = default;
    ~Lease() {
      if (lane_ != nullptr) pool_->Put(std::move(lane_));
    }
    Lane* operator->() const { return lane_.get(); }

   private:
    LanePool* pool_;
    std::unique_ptr<Lane> lane_;
  };

  // Waits while all are in use. The GPU must be current.
  absl::StatusOr<Lease> Take();

 private:
  friend class Lease;
  void Put(std::unique_ptr<Lane> lane);

  absl::Mutex mu_;
  std::vector<std::unique_ptr<Lane>> idle_ ABSL_GUARDED_BY(mu_);
  int made_ ABSL_GUARDED_BY(mu_) = 0;
};

// Pinned memory up to a limit, kept for the next who asks. Thread-safe; made as a shared pointer,
// which its buffers hold on to.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(uint64_t limit) : limit_(limit) {}
  ~PinnedPool();
  absl::StatusOr<PinnedBuffer> Take(uint64_t bytes);

 private:
  struct Buffer {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  void Put(Buffer buffer);

  const uint64_t limit_;
  absl::Mutex mu_;
  std::vector<Buffer> idle_ ABSL_GUARDED_BY(mu_);
  uint64_t total_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace xfer::gpu

#endif  // XFER_AGENT_GPU_LANES_H_
