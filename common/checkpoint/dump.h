// A rank's tensors as a safetensors file, under the framework's names.
#ifndef XFER_COMMON_CHECKPOINT_DUMP_H_
#define XFER_COMMON_CHECKPOINT_DUMP_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/checkpoint/safetensors.h"
#include "common/layout/layout.h"

namespace xfer {

// What a file of the whole rank has in it.
std::vector<SafetensorsWriter::Entry> RankEntries(const RankLayout& layout);

// Writes the file; `memory[i]` is the memory of layout.tensors[i], row-major without gaps. The
// memory must not change meanwhile. InvalidArgument names a tensor whose memory has another size.
absl::Status DumpRank(const std::string& path, const RankLayout& layout,
                      absl::Span<const absl::Span<const std::byte>> memory,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_DUMP_H_
