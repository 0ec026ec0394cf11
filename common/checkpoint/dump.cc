#include "common/checkpoint/dump.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {

std::vector<SafetensorsWriter::Entry> RankEntries(const RankLayout& layout) {
  std::vector<SafetensorsWriter::Entry> entries;
  entries.reserve(layout.tensors.size());
  for (const LocalTensor& tensor : layout.tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  return entries;
}

absl::Status DumpRank(const std::string& path, const RankLayout& layout,
                      absl::Span<const absl::Span<const std::byte>> memory,
                      const std::map<std::string, std::string>& metadata) {
  if (memory.size() != layout.tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": given the memory of ", memory.size(),
                                                   " tensors, but the rank has ",
                                                   layout.tensors.size()));
  }
  XFER_ASSIGN_OR_RETURN(auto writer,
                        SafetensorsWriter::Create(path, RankEntries(layout), metadata));
  for (size_t i = 0; i < memory.size(); ++i) {
    const std::string& name = layout.tensors[i].name;
    XFER_ASSIGN_OR_RETURN(const absl::Span<std::byte> data, writer->Data(name));
    if (data.size() != memory[i].size()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor '", name, "' has ",
                                                     data.size(), " bytes, but its memory has ",
                                                     memory[i].size()));
    }
    if (!data.empty()) std::memcpy(data.data(), memory[i].data(), data.size());
  }
  return writer->Finish();
}

}  // namespace xfer
