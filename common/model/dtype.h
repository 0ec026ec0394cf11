// Element types of tensors, by their safetensors names.
#ifndef XFER_COMMON_MODEL_DTYPE_H_
#define XFER_COMMON_MODEL_DTYPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace xfer {

// The numbers are those of proto xfer.v1.DType; keep them equal.
enum class DType : uint8_t {
  kBF16 = 1,
  kF16 = 2,
  kF32 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5,
  kI8 = 6,
  kU8 = 7,
  kI32 = 8,
  kI64 = 9,
  kF64 = 10,
  kBool = 11,
  kI16 = 12,
};

// Bytes of one element.
int64_t SizeOf(DType dtype);
// "BF16", "F32", "F8_E4M3", ...: the spelling of the safetensors format.
absl::string_view Name(DType dtype);
// Inverse of Name(); also takes torch's spellings ("bfloat16", "float32", ...). InvalidArgument
// names the value and the known ones.
absl::StatusOr<DType> ParseDType(absl::string_view name);

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_DTYPE_H_
