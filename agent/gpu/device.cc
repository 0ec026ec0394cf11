#include "agent/gpu/device.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer {
namespace gpu {
namespace {

// Pieces in which copies between pageable host memory and a GPU go through pinned memory.
constexpr uint64_t kHostPieceBytes = 4 << 20;

absl::StatusOr<Cast> CastOf(DType from, DType to) {
  if (from == DType::kBF16 && to == DType::kF32) return Cast::kBF16ToF32;
  if (from == DType::kF16 && to == DType::kF32) return Cast::kF16ToF32;
  if (from == DType::kF32 && to == DType::kBF16) return Cast::kF32ToBF16;
  if (from == DType::kF32 && to == DType::kF16) return Cast::kF32ToF16;
  return absl::UnimplementedError(
      absl::StrCat("there is no conversion from ", Name(from), " to ", Name(to), " on a GPU"));
}

// Whether a range is one run on both sides, so that the copy engine or the driver's own kernel
// takes it.
bool IsOneRun(const StridedRange& range) {
  return range.copies == 1 && Locate(range, range.begin).left >= range.end - range.begin;
}

}  // namespace

std::string CudaGpu::Say(const char* what) const {
  return absl::StrCat("GPU ", info_.index, " (", info_.name, "): ", what);
}

absl::Status CudaGpu::Use() {
  XFER_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(info_.index), Say("making it current")));
  absl::MutexLock lock(&mu_);
  if (ready_) return absl::OkStatus();
  XFER_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, info_.index),
      Say("counting multiprocessors")));
  XFER_RETURN_IF_ERROR(CudaStatus(UploadLeafKeys(), Say("preparing digests")));
  ready_ = true;
  return absl::OkStatus();
}

absl::Status CudaGpu::Run(const Transfer& transfer, Form form, const std::byte* source,
                          std::byte* destination, uint64_t begin, uint64_t end, const char* what) {
  XFER_RETURN_IF_ERROR(Use());
  XFER_ASSIGN_OR_RETURN(LanePool::Lease lane, lanes_.Take());
  XFER_ASSIGN_OR_RETURN(const StridedRange range, lane->Describe(transfer, begin, end));
  cudaError_t error = cudaSuccess;
  if (IsOneRun(range)) {
    const StridedPlace place = Locate(range, begin);
    error = cudaMemcpyAsync(destination + (form == Form::kPack ? 0 : place.destination),
                            source + (form == Form::kUnpack ? 0 : place.source), end - begin,
                            cudaMemcpyDefault, lane->stream());
  } else {
    error = LaunchCopy(range, form, source, destination, multiprocessors_, lane->stream());
  }
  XFER_RETURN_IF_ERROR(CudaStatus(error, Say(what)));
  return lane->Wait(Say(what));
}

absl::Status CudaGpu::Copy(const Transfer& transfer, const std::byte* source,
                           std::byte* destination, uint64_t begin, uint64_t end) {
  return Run(transfer, Form::kStrided, source, destination, begin, end, "copying");
}

absl::Status CudaGpu::Pack(const Transfer& transfer, const std::byte* source, uint64_t begin,
                           uint64_t end, std::byte* out) {
  return Run(transfer, Form::kPack, source, out, begin, end, "packing");
}

absl::Status CudaGpu::Unpack(const Transfer& transfer, std::byte* destination, uint64_t begin,
                             uint64_t end, const std::byte* in) {
  return Run(transfer, Form::kUnpack, in, destination, begin, end, "unpacking");
}

absl::StatusOr<uint64_t> CudaGpu::Digest(const Transfer& transfer, bool source_side,
                                         const std::byte* base, uint64_t begin, uint64_t end) {
  XFER_RETURN_IF_ERROR(Use());
  XFER_ASSIGN_OR_RETURN(LanePool::Lease lane, lanes_.Take());
  const auto check = [this](cudaError_t error) { return CudaStatus(error, Say("digesting")); };
  XFER_RETURN_IF_ERROR(check(cudaMemsetAsync(lane->sum(), 0, sizeof(uint64_t), lane->stream())));
  XFER_ASSIGN_OR_RETURN(StridedRange range,
                        lane->Describe(transfer, begin, end, /*swap=*/!source_side));
  XFER_RETURN_IF_ERROR(
      check(LaunchDigest(range, base, lane->sum(), multiprocessors_, lane->stream())));
  // The part of a leaf at a stream's end is hashed here: XXH3 takes another way for each length.
  const uint64_t part = (end - begin) % kDigestLeafBytes;
  if (part > 0) {
    range.begin = end - part;
    XFER_RETURN_IF_ERROR(check(
        LaunchCopy(range, Form::kPack, base, lane->leaf(), multiprocessors_, lane->stream())));
  }
  XFER_RETURN_IF_ERROR(check(cudaMemcpyAsync(lane->host_sum(), lane->sum(), sizeof(uint64_t),
                                             cudaMemcpyDeviceToHost, lane->stream())));
  XFER_RETURN_IF_ERROR(lane->Wait(Say("digesting")));
  uint64_t sum = *lane->host_sum();
  if (part > 0) sum += DigestLeaf((end - part) / kDigestLeafBytes, {lane->leaf(), part});
  return sum;
}

absl::Status CudaGpu::Convert(const Transfer& gather, DType from, DType to, const std::byte* source,
                              uint64_t begin, uint64_t end, std::byte* out) {
  XFER_ASSIGN_OR_RETURN(const Cast cast, CastOf(from, to));
  XFER_RETURN_IF_ERROR(Use());
  XFER_ASSIGN_OR_RETURN(LanePool::Lease lane, lanes_.Take());
  XFER_ASSIGN_OR_RETURN(const StridedRange range, lane->Describe(gather, begin, end));
  XFER_RETURN_IF_ERROR(CudaStatus(
      LaunchCast(range, cast, source, out, multiprocessors_, lane->stream()), Say("converting")));
  return lane->Wait(Say("converting"));
}

absl::StatusOr<PinnedBuffer> CudaGpu::Staging(uint64_t bytes) {
  XFER_RETURN_IF_ERROR(Use());
  return pinned_->Take(bytes);
}

bool CudaGpu::Reaches(const CudaGpu& other) {
  if (other.info_.index == info_.index) return true;
  {
    absl::MutexLock lock(&mu_);
    auto found = reaches_.find(other.info_.index);
    if (found != reaches_.end()) return found->second;
  }
  int can = 0;
  absl::Status status = Use();
  if (status.ok()) {
    status = CudaStatus(cudaDeviceCanAccessPeer(&can, info_.index, other.info_.index),
                        Say("peer access"));
  }
  if (status.ok() && can != 0) {
    const cudaError_t error = cudaDeviceEnablePeerAccess(other.info_.index, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      status = CudaStatus(error, Say("peer access"));
    }
  }
  const bool reaches = status.ok() && can != 0;
  if (!reaches) {
    spdlog::warn(
        "GPU {} has no access to the memory of GPU {}{}; copies between them go through the host",
        info_.index, other.info_.index,
        status.ok() ? std::string() : absl::StrCat(" (", status.message(), ")"));
  }
  absl::MutexLock lock(&mu_);
  return reaches_[other.info_.index] = reaches;
}

namespace {

// In pieces through pinned memory, where one side is the host's or two GPUs do not reach each
// other.
absl::Status CopyStaged(const Transfer& from, const Place& source, const Transfer& to,
                        const Place& destination, uint64_t begin, uint64_t end) {
  Gpu* const gpu = source.gpu != nullptr ? source.gpu : destination.gpu;
  XFER_ASSIGN_OR_RETURN(const PinnedBuffer buffer,
                        gpu->Staging(std::min(kHostPieceBytes, end - begin)));
  for (uint64_t at = begin; at < end; at += kHostPieceBytes) {
    const uint64_t stop = std::min(end, at + kHostPieceBytes);
    if (source.gpu != nullptr) {
      XFER_RETURN_IF_ERROR(source.gpu->Pack(from, source.base, at, stop, buffer.get()));
    } else {
      std::byte* out = buffer.get();
      ForEachRun(from, at, stop, [&](uint64_t offset, uint64_t, uint64_t bytes) {
        std::memcpy(out, source.base + offset, bytes);
        out += bytes;
      });
    }
    if (destination.gpu != nullptr) {
      XFER_RETURN_IF_ERROR(destination.gpu->Unpack(to, destination.base, at, stop, buffer.get()));
    } else {
      const std::byte* in = buffer.get();
      ForEachRun(to, at, stop, [&](uint64_t, uint64_t offset, uint64_t bytes) {
        std::memcpy(destination.base + offset, in, bytes);
        in += bytes;
      });
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace gpu

absl::Status GpuCopy(const Transfer& from, const Place& source, const Transfer& to,
                     const Place& destination, uint64_t begin, uint64_t end) {
  // There is one kind of Gpu where CUDA is built in.
  auto* const source_gpu = static_cast<gpu::CudaGpu*>(source.gpu);
  auto* const destination_gpu = static_cast<gpu::CudaGpu*>(destination.gpu);
  const bool same = &from == &to || from.copies == to.copies;
  if (same && source_gpu != nullptr && destination_gpu != nullptr &&
      destination_gpu->Reaches(*source_gpu)) {
    return destination_gpu->Copy(from, source.base, destination.base, begin, end);
  }
  return gpu::CopyStaged(from, source, to, destination, begin, end);
}

}  // namespace xfer
