// The header of a safetensors file.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/checkpoint/safetensors_header.h"
#include "tests/fuzz/seeds.h"

namespace xfer::fuzz {

// The first byte says how many bytes of data are behind the header, in units of 8.
std::vector<std::string> Seeds() {
  return {
      std::string("\x02", 1) +
          R"({"a":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,16]},"__metadata__":{"k":"v"}})",
      std::string("\x03", 1) + R"({"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]},)"
                               R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      std::string("\x00", 1) + R"({"z":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]}})",
  };
}

}  // namespace xfer::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  using xfer::fuzz::Require;
  const uint64_t data_bytes = uint64_t{data[0]} * 8;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto header = xfer::ParseSafetensorsHeader("file", text, data_bytes);
  if (!header.ok()) return 0;
  uint64_t at = 0;
  for (const xfer::SafetensorsEntry& entry : header->entries) {
    Require(entry.begin == at && entry.end >= entry.begin, "entries tile the data");
    const auto bytes = xfer::TensorBytes(entry.dtype, entry.shape);
    Require(bytes.ok() && *bytes == entry.end - entry.begin, "an entry has its shape's bytes");
    at = entry.end;
  }
  Require(at == data_bytes, "entries cover the data");
  const auto again = xfer::FormatSafetensorsHeader("file", *header);
  Require(again.ok(), "a header that was read can be written");
  const auto twice = xfer::ParseSafetensorsHeader(
      "file", absl::string_view(*again).substr(xfer::kSafetensorsLengthBytes), data_bytes);
  Require(twice.ok() && twice->entries.size() == header->entries.size() &&
              twice->metadata == header->metadata,
          "and read again");
  return 0;
}
