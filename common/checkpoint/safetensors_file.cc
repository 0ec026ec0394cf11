#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/checkpoint/files.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/safetensors_header.h"

namespace xfer {

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FileError(errno, "open", path);
  struct stat s;
  if (fstat(fd.get(), &s) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(s.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  const auto size = static_cast<uint64_t>(s.st_size);
  if (size < kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has ", size, " bytes, too few for a safetensors file; is it truncated?"));
  }

  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->path_ = path;
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return FileError(errno, "map", path);
  file->mapping_ = mapping;
  file->mapping_bytes_ = size;
  // Tensors are read from front to back: read ahead well, and let pages go that lie behind. A hint
  // only.
  madvise(mapping, size, MADV_SEQUENTIAL);

  const auto* base = static_cast<const std::byte*>(mapping);
  uint64_t header_bytes = 0;
  for (uint64_t i = 0; i < kSafetensorsLengthBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(base[i]) << (8 * i);
  }
  const uint64_t behind = size - kSafetensorsLengthBytes;
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header length ", header_bytes, " is over the limit of ",
                     kMaxSafetensorsHeaderBytes, "; is it a safetensors file?"));
  }
  if (header_bytes > behind) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header length ", header_bytes,
                                                   " is beyond the file's ", size,
                                                   " bytes; is it truncated?"));
  }
  const absl::string_view json(reinterpret_cast<const char*>(base) + kSafetensorsLengthBytes,
                               header_bytes);
  const uint64_t data_bytes = behind - header_bytes;
  XFER_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(path, json, data_bytes));
  const std::byte* data = base + kSafetensorsLengthBytes + header_bytes;
  for (SafetensorsEntry& entry : header.entries) {
    file->tensors_.emplace(
        std::move(entry.name),
        TensorView{entry.dtype, std::move(entry.shape),
                   absl::MakeConstSpan(data + entry.begin, entry.end - entry.begin)});
  }
  file->metadata_ = std::move(header.metadata);
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

absl::StatusOr<TensorView> SafetensorsFile::Find(absl::string_view name) const {
  const auto it = tensors_.find(absl::StrCat(name));
  if (it == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, " has no tensor '", name, "'"));
  }
  return it->second;
}

}  // namespace xfer
