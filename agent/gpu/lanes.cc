#include "agent/gpu/lanes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace xfer::gpu {
namespace {

constexpr int kMaxLanes = 32;
// In the GPU's memory, and in the host's.
template <typename T>
absl::Status Allocate(T** at, size_t bytes, const char* what) {
  void* raw = nullptr;
  const absl::Status status = CudaStatus(cudaMalloc(&raw, bytes), what);
  *at = static_cast<T*>(raw);
  return status;
}
template <typename T>
absl::Status AllocatePinned(T** at, size_t bytes, const char* what) {
  void* raw = nullptr;
  const absl::Status status = CudaStatus(cudaHostAlloc(&raw, bytes, cudaHostAllocPortable), what);
  *at = static_cast<T*>(raw);
  return status;
}

// Most work is done within this; being woken for its end takes some 100 microseconds, as long as
// copying 200 MB.
constexpr absl::Duration kSpin = absl::Milliseconds(2);

StridedCopy Convert(const Copy& copy, uint64_t begin, size_t first_level) {
  StridedCopy out;
  out.begin = begin;
  out.source = copy.source_offset;
  out.destination = copy.destination_offset;
  out.run = copy.run;
  for (size_t i = first_level; i < copy.levels.size(); ++i) {
    out.count[out.levels] = copy.levels[i].count;
    out.source_stride[out.levels] = copy.levels[i].source_stride;
    out.destination_stride[out.levels] = copy.levels[i].destination_stride;
    ++out.levels;
  }
  return out;
}

// Appends `copy`, or as many copies as it takes where it has more levels than kernels know.
void Append(const Copy& copy, uint64_t stream_begin, uint64_t begin, uint64_t end,
            size_t first_level, std::vector<StridedCopy>& out) {
  uint64_t bytes = copy.run;
  for (size_t i = first_level; i < copy.levels.size(); ++i) bytes *= copy.levels[i].count;
  if (stream_begin >= end || stream_begin + bytes <= begin) return;
  if (copy.levels.size() - first_level <= kMaxLevels) {
    out.push_back(Convert(copy, stream_begin, first_level));
    return;
  }
  const CopyLevel& level = copy.levels[first_level];
  Copy inner = copy;
  for (uint64_t i = 0; i < level.count; ++i) {
    Append(inner, stream_begin + i * (bytes / level.count), begin, end, first_level + 1, out);
    inner.source_offset += static_cast<uint64_t>(level.source_stride);
    inner.destination_offset += static_cast<uint64_t>(level.destination_stride);
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorName(error), " (", static_cast<int>(error),
                   "): ", cudaGetErrorString(error));
  // An error of a launch is also kept for the next who asks; it was told here.
  (void)cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<std::unique_ptr<Lane>> Lane::Create() {
  std::unique_ptr<Lane> lane(new Lane());
  XFER_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&lane->stream_, cudaStreamNonBlocking),
                                  "making a stream"));
  XFER_RETURN_IF_ERROR(CudaStatus(
      cudaEventCreateWithFlags(&lane->event_, cudaEventDisableTiming | cudaEventBlockingSync),
      "making an event"));
  XFER_RETURN_IF_ERROR(Allocate(&lane->sum_, sizeof(uint64_t), "memory for a digest"));
  XFER_RETURN_IF_ERROR(AllocatePinned(&lane->host_sum_, sizeof(uint64_t) + kDigestLeafBytes,
                                      "pinned memory for a digest"));
  lane->leaf_ = reinterpret_cast<std::byte*>(lane->host_sum_ + 1);
  return lane;
}

Lane::~Lane() {
  if (stream_ != nullptr) {
    (void)cudaStreamSynchronize(stream_);  // nothing may still use what is freed here
    (void)cudaStreamDestroy(stream_);
  }
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
  (void)cudaFree(sum_);
  (void)cudaFreeHost(host_sum_);
  (void)cudaFree(table_);
  (void)cudaFreeHost(host_table_);
}

absl::Status Lane::Reserve(size_t copies) {
  if (copies <= capacity_) return absl::OkStatus();
  const size_t capacity = std::max<size_t>({copies, 2 * capacity_, 64});
  (void)cudaFree(std::exchange(table_, nullptr));
  (void)cudaFreeHost(std::exchange(host_table_, nullptr));
  capacity_ = 0;
  const size_t bytes = capacity * sizeof(StridedCopy);
  XFER_RETURN_IF_ERROR(Allocate(&table_, bytes, "memory for descriptors"));
  XFER_RETURN_IF_ERROR(AllocatePinned(&host_table_, bytes, "pinned memory for descriptors"));
  capacity_ = capacity;
  return absl::OkStatus();
}

absl::StatusOr<StridedRange> Lane::Describe(const Transfer& transfer, uint64_t begin, uint64_t end,
                                            bool swap) {
  copies_.clear();
  uint64_t at = 0;
  for (const Copy& copy : transfer.copies) {
    if (at >= end) break;
    Append(copy, at, begin, end, 0, copies_);
    at += copy.bytes();
  }
  for (size_t i = 0; swap && i < copies_.size(); ++i) {
    std::swap(copies_[i].source, copies_[i].destination);
    std::swap(copies_[i].source_stride, copies_[i].destination_stride);
  }
  if (copies_.empty() || begin >= end) {
    return absl::InternalError(absl::StrCat("stream bytes [", begin, ", ", end, ") of transfer ",
                                            transfer.id, " are in no copy"));
  }
  StridedRange range;
  range.begin = begin;
  range.end = end;
  range.copies = static_cast<uint32_t>(copies_.size());
  range.first = copies_.front();
  if (copies_.size() == 1) return range;
  XFER_RETURN_IF_ERROR(Reserve(copies_.size()));
  std::copy(copies_.begin(), copies_.end(), host_table_);
  XFER_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(table_, host_table_, copies_.size() * sizeof(StridedCopy),
                                 cudaMemcpyHostToDevice, stream_),
                 "sending descriptors"));
  range.table = table_;
  return range;
}

absl::Status Lane::Wait(const std::string& what) {
  XFER_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event_, stream_), what));
  const absl::Time until = absl::Now() + kSpin;
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaEventQuery(event_)) == cudaErrorNotReady && absl::Now() < until) {
  }
  if (state == cudaErrorNotReady) state = cudaEventSynchronize(event_);
  return CudaStatus(state, what);
}

absl::StatusOr<LanePool::Lease> LanePool::Take() {
  {
    absl::MutexLock lock(&mu_);
    const auto some = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return !idle_.empty() || made_ < kMaxLanes;
    };
    mu_.Await(absl::Condition(&some));
    if (!idle_.empty()) {
      std::unique_ptr<Lane> lane = std::move(idle_.back());
      idle_.pop_back();
      return Lease(this, std::move(lane));
    }
    ++made_;
  }
  absl::StatusOr<std::unique_ptr<Lane>> lane = Lane::Create();
  if (lane.ok()) return Lease(this, *std::move(lane));
  absl::MutexLock lock(&mu_);
  --made_;
  return lane.status();
}

void LanePool::Put(std::unique_ptr<Lane> lane) {
  absl::MutexLock lock(&mu_);
  idle_.push_back(std::move(lane));
}

PinnedPool::~PinnedPool() {
  for (const Buffer& buffer : idle_) (void)cudaFreeHost(buffer.data);
}

absl::StatusOr<PinnedBuffer> PinnedPool::Take(uint64_t bytes) {
  Buffer buffer;
  {
    absl::MutexLock lock(&mu_);
    const auto fits = std::find_if(idle_.begin(), idle_.end(), [bytes](const Buffer& idle) {
      return idle.bytes >= bytes && idle.bytes / 2 <= bytes;
    });
    if (fits != idle_.end()) {
      buffer = *fits;
      idle_.erase(fits);
    }
    while (buffer.data == nullptr && total_ + bytes > limit_ && !idle_.empty()) {
      total_ -= idle_.back().bytes;
      (void)cudaFreeHost(idle_.back().data);
      idle_.pop_back();
    }
    if (buffer.data == nullptr) {
      if (total_ + bytes > limit_) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "all ", limit_,
            " bytes of GPU staging memory are in use; raise GpuOptions::staging_bytes"));
      }
      total_ += bytes;
    }
  }
  if (buffer.data == nullptr) {
    void* data = nullptr;
    absl::Status status = CudaStatus(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                                     absl::StrCat("pinning ", bytes, " bytes of host memory"));
    if (!status.ok()) {
      absl::MutexLock lock(&mu_);
      total_ -= bytes;
      return status;
    }
    buffer = {static_cast<std::byte*>(data), bytes};
  }
  return PinnedBuffer(buffer.data,
                      [pool = shared_from_this(), buffer](std::byte*) { pool->Put(buffer); });
}

void PinnedPool::Put(Buffer buffer) {
  absl::MutexLock lock(&mu_);
  idle_.push_back(buffer);
}

}  // namespace xfer::gpu
