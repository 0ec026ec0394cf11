// Small helpers around files: errors that name the path, and writes that survive a power cut.
#ifndef XFER_COMMON_CHECKPOINT_FILES_H_
#define XFER_COMMON_CHECKPOINT_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace xfer {

// "cannot WHAT PATH: strerror(error)" under the code that fits `error`; a full disk, a quota and a
// file size limit are ResourceExhausted.
absl::Status FileError(int error, absl::string_view what, absl::string_view path);

struct FileInfo {
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
};
// NotFound where there is none; InvalidArgument where it is not a regular file.
absl::StatusOr<FileInfo> StatFile(const std::string& path);

// The whole file; InvalidArgument where it is longer than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

// Writes under a temporary name, syncs, renames and syncs the directory: `path` holds the old
// content or all of the new.
absl::Status WriteFileDurably(const std::string& path, absl::string_view content);

// Makes directory entries (created, renamed, removed) survive a power cut.
absl::Status SyncDirectory(const std::string& directory);

// The directory part of a path; "." where it has none.
std::string DirectoryOf(const std::string& path);

// Creates and opens for reading and writing a new file in the directory of `path`, named after it
// with kTemporarySuffix at the end. Returns the descriptor, owned by the caller, and sets
// `*temporary`.
absl::StatusOr<int> OpenTemporary(const std::string& path, std::string* temporary);
inline constexpr absl::string_view kTemporarySuffix = ".xfertmp";

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_FILES_H_
