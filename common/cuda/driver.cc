#include "common/cuda/driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

absl::StatusOr<CudaDriver> Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no CUDA driver (", dlerror(),
                     "): install NVIDIA's driver, or keep the weights in host memory"));
  }
  CudaDriver driver;
  const char* missing = nullptr;
#define XFER_CUDA_LOAD_SYMBOL(name)                                             \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, #name)); \
  if (driver.name == nullptr) missing = #name;
// One level more, so that cuda.h's macros have done their work before the name is made a string.
#define XFER_CUDA_LOAD(name) XFER_CUDA_LOAD_SYMBOL(name)
  XFER_CUDA_DRIVER_FUNCTIONS(XFER_CUDA_LOAD)
#undef XFER_CUDA_LOAD
#undef XFER_CUDA_LOAD_SYMBOL
  if (missing != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA driver has no ", missing,
                     ": it is too old for xfer; CUDA 12 or later is needed"));
  }
  const CUresult result = driver.cuInit(0);
  if (result != CUDA_SUCCESS) {
    return absl::FailedPreconditionError(
        absl::StrCat(driver.Check(result, "starting the CUDA driver").message(),
                     ": does nvidia-smi show a GPU here?"));
  }
  return driver;
}

}  // namespace

absl::Status CudaDriver::Check(CUresult result, const std::string& what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* words = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &words);
  const std::string message =
      absl::StrCat(what, ": ", name == nullptr ? "error" : name, " (", static_cast<int>(result),
                   "): ", words == nullptr ? "unknown" : words);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<std::string> CudaDriver::Uuid(CUdevice device) const {
  CUuuid uuid = {};
  absl::Status status = Check(cuDeviceGetUuid(&uuid, device), "reading a GPU's UUID");
  if (!status.ok()) return status;
  return std::string(uuid.bytes, sizeof(uuid.bytes));
}

absl::StatusOr<const CudaDriver*> LoadCudaDriver() {
  static const auto* const driver = new absl::StatusOr<CudaDriver>(Load());
  if (!driver->ok()) return driver->status();
  return &**driver;
}

}  // namespace xfer
