// The CUDA driver, loaded when it is first asked for, so that programs start without it. Include
// this where CUDA is built in (XFER_HAVE_CUDA) only.
#ifndef XFER_COMMON_CUDA_DRIVER_H_
#define XFER_COMMON_CUDA_DRIVER_H_

#include <cuda.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace xfer {

// cuda.h renames some of these by macros to their newest versions; the members take part in that,
// and bear the names of the library's symbols.
#define XFER_CUDA_DRIVER_FUNCTIONS(F)       \
  F(cuInit)                                 \
  F(cuGetErrorName)                         \
  F(cuGetErrorString)                       \
  F(cuDeviceGetCount)                       \
  F(cuDeviceGet)                            \
  F(cuDeviceGetName)                        \
  F(cuDeviceGetUuid)                        \
  F(cuDeviceTotalMem)                       \
  F(cuDeviceGetAttribute)                   \
  F(cuDevicePrimaryCtxRetain)               \
  F(cuDevicePrimaryCtxRelease)              \
  F(cuCtxGetCurrent)                        \
  F(cuCtxSetCurrent)                        \
  F(cuPointerGetAttribute)                  \
  F(cuMemAlloc)                             \
  F(cuMemFree)                              \
  F(cuMemcpyHtoD)                           \
  F(cuMemcpyDtoH)                           \
  F(cuMemGetAddressRange)                   \
  F(cuMemGetHandleForAddressRange)          \
  F(cuIpcGetMemHandle)                      \
  F(cuIpcOpenMemHandle)                     \
  F(cuIpcCloseMemHandle)                    \
  F(cuMemGetAllocationGranularity)          \
  F(cuMemGetAllocationPropertiesFromHandle) \
  F(cuMemCreate)                            \
  F(cuMemRelease)                           \
  F(cuMemRetainAllocationHandle)            \
  F(cuMemExportToShareableHandle)           \
  F(cuMemImportFromShareableHandle)         \
  F(cuMemAddressReserve)                    \
  F(cuMemAddressFree)                       \
  F(cuMemMap)                               \
  F(cuMemUnmap)                             \
  F(cuMemSetAccess)

struct CudaDriver {
#define XFER_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  XFER_CUDA_DRIVER_FUNCTIONS(XFER_CUDA_MEMBER)
#undef XFER_CUDA_MEMBER

  // OK, or an error that says what was done, with the driver's name and words for `result`.
  // ResourceExhausted where the GPU's memory does not suffice, Internal otherwise.
  absl::Status Check(CUresult result, const std::string& what) const;
  // 16 bytes that name the device in every process, whatever CUDA_VISIBLE_DEVICES says.
  absl::StatusOr<std::string> Uuid(CUdevice device) const;
};

// The driver, initialised; loaded once a process. FailedPrecondition names what is missing: the
// library, a GPU, a newer driver. Thread-safe.
absl::StatusOr<const CudaDriver*> LoadCudaDriver();

// Makes `context` the calling thread's for as long as it lives, and then the one before again. Not
// for other threads.
class CudaContextScope {
 public:
  CudaContextScope(const CudaDriver& driver, CUcontext context) : driver_(driver) {
    driver_.cuCtxGetCurrent(&before_);
    driver_.cuCtxSetCurrent(context);
  }
  CudaContextScope(const CudaContextScope&) = delete;
  ~CudaContextScope() { driver_.cuCtxSetCurrent(before_); }

 private:
  const CudaDriver& driver_;
  CUcontext before_ = nullptr;
};

}  // namespace xfer

#endif  // XFER_COMMON_CUDA_DRIVER_H_
