#include "common/checkpoint/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace xfer {

absl::Status FileError(int error, absl::string_view what, absl::string_view path) {
  const std::string message = absl::StrCat("cannot ", what, " ", path);
  if (error == EFBIG || error == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat(
        message, ": ",
        error == EFBIG ? "file size limit (ulimit -f) reached" : "disk quota reached"));
  }
  return absl::ErrnoToStatus(error, message);
}

absl::StatusOr<FileInfo> StatFile(const std::string& path) {
  struct stat s;
  if (stat(path.c_str(), &s) != 0) return FileError(errno, "find", path);
  if (!S_ISREG(s.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return FileInfo{static_cast<uint64_t>(s.st_size),
                  int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec};
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FileError(errno, "open", path);
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path);
    if (n == 0) return content;
    content.append(buffer, n);
    if (content.size() > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is longer than the ", max_bytes,
                                                     " bytes that such a file may have"));
    }
  }
}

absl::Status WriteFileDurably(const std::string& path, absl::string_view content) {
  std::string temporary;
  XFER_ASSIGN_OR_RETURN(const int raw, OpenTemporary(path, &temporary));
  UniqueFd fd(raw);
  const auto fail = [&](absl::string_view what) {
    const int error = errno;
    unlink(temporary.c_str());
    return FileError(error, what, temporary);
  };
  while (!content.empty()) {
    const ssize_t n = write(fd.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail("write");
    content.remove_prefix(n);
  }
  if (fsync(fd.get()) != 0) return fail("sync");
  if (rename(temporary.c_str(), path.c_str()) != 0) return fail("rename");
  return SyncDirectory(DirectoryOf(path));
}

absl::Status SyncDirectory(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return FileError(errno, "open", directory);
  // Some network file systems cannot sync a directory and say EINVAL; their rename is synchronous.
  if (fsync(fd.get()) != 0 && errno != EINVAL) return FileError(errno, "sync", directory);
  return absl::OkStatus();
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::StatusOr<int> OpenTemporary(const std::string& path, std::string* temporary) {
  *temporary = absl::StrCat(path, ".XXXXXX", kTemporarySuffix);
  const int fd = mkostemps(temporary->data(), static_cast<int>(kTemporarySuffix.size()), O_CLOEXEC);
  if (fd < 0) return FileError(errno, "create a file beside", path);
  // mkostemps makes the file private; a checkpoint is as readable as any other file of its owner.
  if (fchmod(fd, 0644) != 0) {
    const int error = errno;
    close(fd);
    unlink(temporary->c_str());
    return FileError(error, "set the mode of", *temporary);
  }
  return fd;
}

}  // namespace xfer
