#include "common/checkpoint/prepare_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/files.h"
#include "common/checkpoint/prepared_record.h"

namespace xfer {
namespace {

namespace fs = std::filesystem;

// Only names that a preparation itself gives are ever removed.
bool IsOurs(const std::string& directory_name, const std::string& name) {
  if (absl::EndsWith(name, kTemporarySuffix)) return true;
  if (directory_name == "hf") {
    return name == "config.json" || name == "model.safetensors.index.json" ||
           (absl::StartsWith(name, "model") && absl::EndsWith(name, ".safetensors"));
  }
  if (directory_name == "train") {
    return absl::StartsWith(name, "rank-") && absl::EndsWith(name, ".safetensors");
  }
  return false;
}

// The files in a directory that Clean() would remove; none where the directory is missing.
absl::StatusOr<std::vector<std::string>> OurFiles(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  const std::string directory_name = fs::path(path).filename().string();
  fs::directory_iterator it(path, error);
  if (error == std::errc::no_such_file_or_directory) return files;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (IsOurs(directory_name, it->path().filename().string()))
      files.push_back(it->path().string());
  }
  if (error) return FileError(error.value(), "list", path);
  return files;
}

absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return FileError(error.value(), "make directory", path);
  return absl::OkStatus();
}

absl::Status Remove(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return FileError(errno, "remove", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrepareDirectory>> PrepareDirectory::Open(const std::string& path) {
  XFER_RETURN_IF_ERROR(MakeDirectory(path));
  std::unique_ptr<PrepareDirectory> directory(new PrepareDirectory(path));
  directory->lock_ = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory->lock_.valid()) return FileError(errno, "open", path);
  // Some network file systems cannot lock a directory; there, two preparations at once are the
  // user's care.
  if (flock(directory->lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::AbortedError(absl::StrCat("another xferctl prepare is working in ", path,
                                           "; wait for it or choose another directory"));
  }
  return directory;
}

absl::Status PrepareDirectory::CheckOwned() const {
  std::error_code ignored;
  if (fs::exists(mark(), ignored) || fs::exists(absl::StrCat(path_, "/", kRecordName), ignored)) {
    return absl::OkStatus();
  }
  for (const std::string& sub : {hf(), train()}) {
    if (fs::exists(sub, ignored) && !fs::is_empty(sub, ignored)) {
      return absl::AlreadyExistsError(
          absl::StrCat(sub,
                       " holds files that no preparation made; choose another output directory, or "
                       "move them away"));
    }
  }
  return absl::OkStatus();
}

absl::Status PrepareDirectory::CheckSpace(uint64_t bytes) const {
  struct statvfs s;
  if (statvfs(path_.c_str(), &s) != 0) return FileError(errno, "ask for the free space of", path_);
  uint64_t free = uint64_t{s.f_bavail} * s.f_frsize;
  std::set<ino_t> seen;  // hard links count once
  for (const std::string& sub : {hf(), train()}) {
    XFER_ASSIGN_OR_RETURN(const std::vector<std::string> files, OurFiles(sub));
    for (const std::string& file : files) {
      struct stat f;
      constexpr uint64_t kStatBlockBytes = 512;
      if (lstat(file.c_str(), &f) == 0 && seen.insert(f.st_ino).second) {
        free += static_cast<uint64_t>(f.st_blocks) * kStatBlockBytes;
      }
    }
  }
  if (free >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(path_, " needs ", bytes, " bytes, but only ",
                                                   free, " are free; free ", bytes - free,
                                                   " more or choose another directory"));
}

absl::Status PrepareDirectory::Clean() {
  for (const std::string& sub : {hf(), train(), path_}) {
    XFER_ASSIGN_OR_RETURN(const std::vector<std::string> files, OurFiles(sub));
    for (const std::string& file : files) XFER_RETURN_IF_ERROR(Remove(file));
  }
  return absl::OkStatus();
}

absl::Status PrepareDirectory::Begin() {
  XFER_RETURN_IF_ERROR(WriteFileDurably(mark(), "xferctl prepare has not finished here\n"));
  // On disk before any file goes, so that no record outlives its files.
  XFER_RETURN_IF_ERROR(Remove(absl::StrCat(path_, "/", kRecordName)));
  XFER_RETURN_IF_ERROR(SyncDirectory(path_));
  XFER_RETURN_IF_ERROR(Clean());
  XFER_RETURN_IF_ERROR(MakeDirectory(hf()));
  return MakeDirectory(train());
}

absl::Status PrepareDirectory::Finish(const std::string& record) {
  // An hf/ that stayed empty (the values are a given directory's) would only mislead.
  std::error_code ignored;
  if (fs::is_empty(hf(), ignored)) fs::remove(hf(), ignored);
  XFER_RETURN_IF_ERROR(SyncDirectory(path_));
  XFER_RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(path_, "/", kRecordName), record));
  return Remove(mark());
}

void PrepareDirectory::Abandon() {
  // Best effort, after an error that is already being reported; the next run cleans what is left.
  if (!Clean().ok()) return;
  std::error_code ignored;
  for (const std::string& sub : {hf(), train()}) {
    if (fs::is_empty(sub, ignored)) fs::remove(sub, ignored);
  }
  unlink(mark().c_str());
}

}  // namespace xfer
