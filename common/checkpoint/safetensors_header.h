// The JSON header of a safetensors file, checked. Used by the file and the writer of safetensors.h.
#ifndef XFER_COMMON_CHECKPOINT_SAFETENSORS_HEADER_H_
#define XFER_COMMON_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/layout/box.h"
#include "common/model/dtype.h"

namespace xfer {

// What the format's own library accepts.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// Of the length that stands before the header.
inline constexpr uint64_t kSafetensorsLengthBytes = 8;

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
  uint64_t begin = 0, end = 0;  // bytes from the end of the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by offset
  std::map<std::string, std::string> metadata;
};

// Bytes of a tensor; InvalidArgument for a negative extent, more than kMaxDims dimensions, or a
// size that does not fit 63 bits. The message names the shape, not the tensor.
absl::StatusOr<uint64_t> TensorBytes(DType dtype, const Dims& shape);

// Parses a header from outside, for a file `path` with `data_bytes` bytes behind it. The entries of
// the result tile [0, data_bytes) without gaps. InvalidArgument names file, tensor and value.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view path,
                                                         absl::string_view json,
                                                         uint64_t data_bytes);

// The header's length and text, padded with spaces so that the data behind starts on 64 bytes.
absl::StatusOr<std::string> FormatSafetensorsHeader(absl::string_view path,
                                                    const SafetensorsHeader& header);

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_SAFETENSORS_HEADER_H_
