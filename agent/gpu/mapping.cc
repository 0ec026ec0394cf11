#include "agent/gpu/mapping.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer::gpu {
namespace {

void Log(const absl::Status& status) {
  if (!status.ok()) spdlog::error("{}", std::string(status.message()));
}

absl::Status AsInvalid(const absl::Status& status, absl::string_view remedy) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat(status.message(), "; ", remedy));
}

class IpcRange final : public MappedRange {
 public:
  IpcRange(const CudaDriver& driver, CudaGpu* gpu, CUdeviceptr base, uint64_t bytes)
      : driver_(driver), gpu_(gpu), base_(base), bytes_(bytes) {}
  ~IpcRange() override {
    Log(gpu_->Use());
    Log(driver_.Check(driver_.cuIpcCloseMemHandle(base_), "closing GPU memory"));
  }
  CUdeviceptr base() const override { return base_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  const CudaDriver& driver_;
  CudaGpu* const gpu_;
  const CUdeviceptr base_;
  const uint64_t bytes_;
};

class SegmentRange final : public MappedRange {
 public:
  SegmentRange(const CudaDriver& driver, CudaGpu* gpu, CUdeviceptr base, uint64_t bytes)
      : driver_(driver), gpu_(gpu), base_(base), bytes_(bytes) {}
  ~SegmentRange() override {
    Log(gpu_->Use());
    if (mapped_ > 0) Log(driver_.Check(driver_.cuMemUnmap(base_, mapped_), "unmapping GPU memory"));
    Log(driver_.Check(driver_.cuMemAddressFree(base_, bytes_), "freeing a range of GPU addresses"));
  }
  CUdeviceptr base() const override { return base_; }
  uint64_t bytes() const override { return bytes_; }

  absl::Status Append(const GpuExport::Segment& segment);
  absl::Status Allow(int devices);

 private:
  const CudaDriver& driver_;
  CudaGpu* const gpu_;
  const CUdeviceptr base_;
  const uint64_t bytes_;
  uint64_t mapped_ = 0;
};

absl::Status SegmentRange::Append(const GpuExport::Segment& segment) {
  CUmemGenericAllocationHandle handle = 0;
  XFER_RETURN_IF_ERROR(AsInvalid(
      driver_.Check(driver_.cuMemImportFromShareableHandle(
                        &handle, reinterpret_cast<void*>(static_cast<intptr_t>(segment.fd.get())),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "importing a segment of GPU memory"),
      "export it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
  CUmemAllocationProp properties = {};
  absl::Status status = driver_.Check(
      driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle), "looking at a segment");
  if (status.ok() && properties.location.id != gpu_->info().index) {
    status = absl::InvalidArgumentError(
        absl::StrCat("a segment lies on GPU ", properties.location.id, ", but the region on GPU ",
                     gpu_->info().index, "; register memory of each GPU on its own"));
  }
  if (status.ok()) {
    status =
        AsInvalid(driver_.Check(driver_.cuMemMap(base_ + mapped_, segment.bytes, 0, handle, 0),
                                absl::StrCat("mapping a segment of ", segment.bytes, " bytes")),
                  "give each segment's true size");
  }
  // The mapping keeps the memory.
  Log(driver_.Check(driver_.cuMemRelease(handle), "releasing a segment's handle"));
  if (status.ok()) mapped_ += segment.bytes;
  return status;
}

absl::Status SegmentRange::Allow(int devices) {
  std::vector<CUmemAccessDesc> access;
  for (int i = 0; i < devices; ++i) {
    int reaches = i == gpu_->info().index;
    if (!reaches) {
      XFER_RETURN_IF_ERROR(
          CudaStatus(cudaDeviceCanAccessPeer(&reaches, i, gpu_->info().index), "peer access"));
    }
    if (!reaches) continue;
    CUmemAccessDesc& entry = access.emplace_back();
    entry.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    entry.location.id = i;
    entry.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return driver_.Check(driver_.cuMemSetAccess(base_, mapped_, access.data(), access.size()),
                       "opening GPU memory for access");
}

}  // namespace

absl::StatusOr<std::shared_ptr<MappedRange>> IpcRanges::Open(const CudaDriver& driver, CudaGpu* gpu,
                                                             const std::string& handle) {
  absl::MutexLock lock(&mu_);
  if (std::shared_ptr<MappedRange> range = open_[handle].lock()) return range;
  CUipcMemHandle raw = {};
  std::memcpy(&raw, handle.data(), std::min(handle.size(), sizeof(raw)));
  CUdeviceptr opened = 0;
  XFER_RETURN_IF_ERROR(AsInvalid(
      driver.Check(driver.cuIpcOpenMemHandle(&opened, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                   "opening a CUDA IPC handle"),
      "the process that made it must be alive, on this machine, and another one than the agent"));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const absl::Status status =
      driver.Check(driver.cuMemGetAddressRange(&base, &bytes, opened), "sizing an allocation");
  // Takes the mapping on, whatever came of the question.
  auto range = std::make_shared<IpcRange>(driver, gpu, opened, bytes);
  XFER_RETURN_IF_ERROR(status);
  for (auto it = open_.begin(); it != open_.end();) {
    const auto at = it++;
    if (at->second.expired()) open_.erase(at);
  }
  open_[handle] = range;
  return range;
}

absl::StatusOr<std::shared_ptr<MappedRange>> MapSegments(
    const CudaDriver& driver, CudaGpu* gpu, int devices,
    const std::vector<GpuExport::Segment>& segments) {
  uint64_t bytes = 0;
  for (const GpuExport::Segment& segment : segments) bytes += segment.bytes;
  CUdeviceptr base = 0;
  XFER_RETURN_IF_ERROR(
      AsInvalid(driver.Check(driver.cuMemAddressReserve(&base, bytes, 0, 0, 0),
                             absl::StrCat("a range of ", bytes, " bytes of GPU addresses")),
                "segments are multiples of the allocation granularity"));
  auto range = std::make_shared<SegmentRange>(driver, gpu, base, bytes);
  for (const GpuExport::Segment& segment : segments) XFER_RETURN_IF_ERROR(range->Append(segment));
  XFER_RETURN_IF_ERROR(range->Allow(devices));
  return range;
}

}  // namespace xfer::gpu
