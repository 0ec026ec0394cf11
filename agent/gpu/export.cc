#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/gpu/gpu.h"

namespace xfer {
namespace {

constexpr size_t kUuidBytes = 16;
constexpr size_t kIpcHandleBytes = 64;
constexpr size_t kMaxSegments = 65'536;

}  // namespace

std::string FormatUuid(const std::string& uuid) {
  const std::string hex = absl::BytesToHexString(uuid);
  if (uuid.size() != kUuidBytes) return absl::StrCat("GPU-", hex);
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

absl::Status CheckGpuExport(const GpuExport& memory) {
  if (memory.uuid.size() != kUuidBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the GPU's UUID has ", memory.uuid.size(),
                                                   " bytes; it must have ", kUuidBytes));
  }
  if (memory.bytes == 0)
    return absl::InvalidArgumentError("region of 0 bytes; it must hold something");
  uint64_t end = 0;
  if (__builtin_add_overflow(memory.offset, memory.bytes, &end) ||
      end > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "region offset ", memory.offset, " + ", memory.bytes, " bytes is beyond any memory's end"));
  }
  if (memory.segments.empty()) {
    if (memory.ipc_handle.size() == kIpcHandleBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the CUDA IPC handle has ", memory.ipc_handle.size(), " bytes; it must have ",
                     kIpcHandleBytes, ", or there must be segments"));
  }
  if (!memory.ipc_handle.empty() || memory.segments.size() > kMaxSegments) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory.segments.size(), " segments of GPU memory",
                     memory.ipc_handle.empty() ? "" : " and a CUDA IPC handle as well",
                     "; give 1 to ", kMaxSegments, " segments or one handle"));
  }
  uint64_t total = 0;
  for (const GpuExport::Segment& segment : memory.segments) {
    if (segment.bytes == 0 || __builtin_add_overflow(total, segment.bytes, &total)) {
      return absl::InvalidArgumentError(absl::StrCat("a segment of GPU memory has ", segment.bytes,
                                                     " bytes; give its true size"));
    }
  }
  if (end > total) {
    return absl::InvalidArgumentError(absl::StrCat("region [", memory.offset, ", ", end,
                                                   ") reaches beyond its segments of ", total,
                                                   " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace xfer
