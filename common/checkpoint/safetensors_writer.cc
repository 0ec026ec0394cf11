#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/files.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/safetensors_header.h"

namespace xfer {
namespace {

// Places the tensors, those with the widest elements first: as the header ends on 64 bytes and
// there are no gaps, every tensor is then aligned for its own type.
absl::StatusOr<SafetensorsHeader> Place(const std::string& path,
                                        std::vector<SafetensorsWriter::Entry> entries,
                                        const std::map<std::string, std::string>& metadata) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return SizeOf(a.dtype) > SizeOf(b.dtype); });
  SafetensorsHeader header;
  header.metadata = metadata;
  uint64_t at = 0;
  for (auto& entry : entries) {
    auto bytes = TensorBytes(entry.dtype, entry.shape);
    if (!bytes.ok()) {
      return Annotate(bytes.status(), absl::StrCat(path, ": tensor '", entry.name, "'"));
    }
    uint64_t end;
    if (__builtin_add_overflow(at, *bytes, &end) ||
        end > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) / 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", entry.name, "' does not fit in any file"));
    }
    header.entries.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape), at, end});
    at = end;
  }
  return header;
}

// Blocks on disk for the whole file, so that writing through the mapping cannot meet a full disk
// (which would be a SIGBUS).
absl::Status Reserve(int fd, uint64_t bytes, const std::string& path) {
  int error;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == 0) return absl::OkStatus();
  return FileError(error, absl::StrCat("reserve ", bytes, " bytes for"), path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<Entry> entries,
    const std::map<std::string, std::string>& metadata) {
  XFER_ASSIGN_OR_RETURN(SafetensorsHeader header, Place(path, std::move(entries), metadata));
  XFER_ASSIGN_OR_RETURN(const std::string head, FormatSafetensorsHeader(path, header));
  const uint64_t size = head.size() + (header.entries.empty() ? 0 : header.entries.back().end);

  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  std::string temporary;
  XFER_ASSIGN_OR_RETURN(const int fd, OpenTemporary(path, &temporary));
  writer->fd_ = UniqueFd(fd);
  writer->path_ = path;
  writer->temporary_ = temporary;
  XFER_RETURN_IF_ERROR(Reserve(fd, size, path));
  void* mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return FileError(errno, "map", temporary);
  writer->mapping_ = mapping;
  writer->mapping_bytes_ = size;
  auto* base = static_cast<std::byte*>(mapping);
  std::memcpy(base, head.data(), head.size());
  for (SafetensorsEntry& entry : header.entries) {
    writer->tensors_.emplace(std::move(entry.name), absl::MakeSpan(base + head.size() + entry.begin,
                                                                   entry.end - entry.begin));
  }
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::StatusOr<absl::Span<std::byte>> SafetensorsWriter::Data(absl::string_view name) {
  if (mapping_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is already finished"));
  }
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, " has no tensor '", name, "'"));
  }
  return it->second;
}

absl::Status SafetensorsWriter::Finish() {
  if (mapping_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is already finished"));
  }
  // msync reports an I/O error of a mapped page; fsync adds the file's size and blocks.
  if (msync(mapping_, mapping_bytes_, MS_SYNC) != 0) return FileError(errno, "sync", temporary_);
  munmap(mapping_, mapping_bytes_);
  mapping_ = nullptr;
  if (fsync(fd_.get()) != 0) return FileError(errno, "sync", temporary_);
  fd_.reset();
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return FileError(errno, absl::StrCat("rename ", temporary_, " to"), path_);
  }
  temporary_.clear();
  return SyncDirectory(DirectoryOf(path_));
}

}  // namespace xfer
