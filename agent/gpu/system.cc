#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/gpu/device.h"
#include "agent/gpu/gpu.h"
#include "agent/gpu/mapping.h"
#include "common/base/status.h"
#include "common/cuda/driver.h"

namespace xfer {
namespace gpu {
namespace {

class CudaMapping final : public GpuMapping {
 public:
  CudaMapping(std::shared_ptr<MappedRange> range, uint64_t offset, uint64_t bytes, Gpu* gpu)
      : range_(std::move(range)), offset_(offset), bytes_(bytes), gpu_(gpu) {}
  std::byte* base() const override {
    return reinterpret_cast<std::byte*>(range_->base() + offset_);
  }
  uint64_t bytes() const override { return bytes_; }
  Gpu* gpu() const override { return gpu_; }

 private:
  const std::shared_ptr<MappedRange> range_;
  const uint64_t offset_;
  const uint64_t bytes_;
  Gpu* const gpu_;
};

class CudaSystem final : public GpuSystem {
 public:
  CudaSystem(const CudaDriver* driver, const GpuOptions& options)
      : driver_(driver), pinned_(std::make_shared<PinnedPool>(options.staging_bytes)) {}

  absl::Status Find();
  std::vector<GpuInfo> gpus() const override;
  Gpu* gpu(int32_t index) const override {
    return index >= 0 && static_cast<size_t>(index) < gpus_.size() ? gpus_[index].get() : nullptr;
  }
  absl::StatusOr<std::unique_ptr<GpuMapping>> Map(GpuExport memory) override;

 private:
  const CudaDriver* const driver_;
  const std::shared_ptr<PinnedPool> pinned_;
  std::vector<std::unique_ptr<CudaGpu>> gpus_;
  IpcRanges ipc_;
};

absl::Status CudaSystem::Find() {
  int count = 0;
  XFER_RETURN_IF_ERROR(driver_->Check(driver_->cuDeviceGetCount(&count), "counting GPUs"));
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    XFER_RETURN_IF_ERROR(driver_->Check(driver_->cuDeviceGet(&device, i), "finding a GPU"));
    GpuInfo info;
    info.index = i;
    XFER_ASSIGN_OR_RETURN(info.uuid, driver_->Uuid(device));
    std::array<char, 128> name = {};
    XFER_RETURN_IF_ERROR(driver_->Check(
        driver_->cuDeviceGetName(name.data(), name.size() - 1, device), "reading a GPU's name"));
    info.name = name.data();
    size_t bytes = 0;
    XFER_RETURN_IF_ERROR(
        driver_->Check(driver_->cuDeviceTotalMem(&bytes, device), "reading a GPU's size"));
    info.memory_bytes = bytes;
    gpus_.push_back(std::make_unique<CudaGpu>(std::move(info), pinned_));
  }
  if (!gpus_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the CUDA driver shows no GPU: is CUDA_VISIBLE_DEVICES set for the agent? It should see all "
      "of them");
}

std::vector<GpuInfo> CudaSystem::gpus() const {
  std::vector<GpuInfo> all;
  for (const auto& gpu : gpus_) all.push_back(gpu->info());
  return all;
}

absl::StatusOr<std::unique_ptr<GpuMapping>> CudaSystem::Map(GpuExport memory) {
  XFER_RETURN_IF_ERROR(CheckGpuExport(memory));
  CudaGpu* gpu = nullptr;
  for (const auto& candidate : gpus_) {
    if (candidate->info().uuid == memory.uuid) gpu = candidate.get();
  }
  if (gpu == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "this agent sees no ", FormatUuid(memory.uuid), ", but ",
        absl::StrJoin(
            gpus_, ", ",
            [](std::string* out, const auto& each) { *out += FormatUuid(each->info().uuid); }),
        ": start it without CUDA_VISIBLE_DEVICES, on the rank's node"));
  }
  XFER_RETURN_IF_ERROR(gpu->Use());
  std::shared_ptr<MappedRange> range;
  if (memory.segments.empty()) {
    XFER_ASSIGN_OR_RETURN(range, ipc_.Open(*driver_, gpu, memory.ipc_handle));
  } else {
    XFER_ASSIGN_OR_RETURN(
        range, MapSegments(*driver_, gpu, static_cast<int>(gpus_.size()), memory.segments));
  }
  if (memory.offset > range->bytes() || memory.bytes > range->bytes() - memory.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("region [", memory.offset, ", ", memory.offset + memory.bytes,
                     ") reaches beyond its GPU allocation of ", range->bytes(), " bytes"));
  }
  return std::make_unique<CudaMapping>(std::move(range), memory.offset, memory.bytes, gpu);
}

}  // namespace
}  // namespace gpu

absl::StatusOr<std::unique_ptr<GpuSystem>> OpenGpus(const GpuOptions& options) {
  XFER_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  auto system = std::make_unique<gpu::CudaSystem>(driver, options);
  XFER_RETURN_IF_ERROR(system->Find());
  return system;
}

}  // namespace xfer
