#include "agent/memory/mapped_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {

absl::Status CheckRange(uint64_t offset, uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0) return absl::InvalidArgumentError("region of 0 bytes; it must hold something");
  if (offset % page != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region offset ", offset, " is not a multiple of the page size ", page));
  }
  uint64_t end;
  if (__builtin_add_overflow(offset, bytes, &end) ||
      end > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("region offset ", offset, " + ", bytes, " bytes is beyond any file's end"));
  }
  return absl::OkStatus();
}

absl::Status SealAgainstShrinking(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return absl::OkStatus();
  if (seals >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "region memory cannot be sealed against shrinking (", strerror(errno),
      "): make it with memfd_create(..., MFD_ALLOW_SEALING) and pass a writable descriptor"));
}

}  // namespace

absl::StatusOr<MappedRegion> MappedRegion::Map(int fd, uint64_t offset, uint64_t bytes) {
  XFER_RETURN_IF_ERROR(CheckRange(offset, bytes));
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("region descriptor: fstat: ", strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError("region descriptor is no memory file; pass a memfd");
  }
  XFER_RETURN_IF_ERROR(SealAgainstShrinking(fd));
  // Only now is the size sure to stay.
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < offset + bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("region [", offset, ", ", offset + bytes, ") reaches beyond its file of ",
                     info.st_size, " bytes: size the file with ftruncate() before registering it"));
  }
  void* base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (base == MAP_FAILED) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot map ", bytes, " bytes of the region at offset ", offset, ": ", strerror(errno),
        "; the descriptor must be readable and writable and not sealed against writing"));
  }
  return MappedRegion({static_cast<std::byte*>(base), bytes});
}

MappedRegion& MappedRegion::operator=(MappedRegion&& other) noexcept {
  if (this != &other) {
    if (bytes_.data() != nullptr) munmap(bytes_.data(), bytes_.size());
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MappedRegion::~MappedRegion() {
  if (bytes_.data() != nullptr) munmap(bytes_.data(), bytes_.size());
}

}  // namespace xfer
