#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/host_memory.h"
#include "client/rank_client.h"

namespace xfer {
namespace {

absl::Status MemoryError(const std::string& name, uint64_t bytes, const char* step, int error) {
  const std::string message = absl::StrCat("cannot make ", bytes, " bytes of shared memory for ",
                                           name, ": ", step, ": ", strerror(error));
  if (error == ENOMEM || error == ENOSPC || error == EFBIG || error == EOVERFLOW ||
      error == EINVAL) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(const std::string& name, uint64_t bytes) {
  if (bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory for ", name, " has 0 bytes"));
  }
  // A memfd is filled page by page as it is touched, and a process that touches one page too many
  // is killed; so the amount is looked at before anything is touched.
  const uint64_t available = AvailableMemoryBytes();
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat("shared memory for ", name, " needs ", bytes,
                                                     " bytes, but this machine has only ",
                                                     available, " bytes of memory available"));
  }
  SharedMemory memory;
  memory.fd_ = UniqueFd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_.valid()) return MemoryError(name, bytes, "memfd_create", errno);
  if (ftruncate(memory.fd_.get(), static_cast<off_t>(bytes)) != 0) {
    return MemoryError(name, bytes, "ftruncate", errno);
  }
  // The agent maps the same file: it must never shrink under that mapping.
  if (fcntl(memory.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return MemoryError(name, bytes, "F_ADD_SEALS", errno);
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd_.get(), 0);
  if (base == MAP_FAILED) return MemoryError(name, bytes, "mmap", errno);
  memory.base_ = static_cast<std::byte*>(base);
  memory.bytes_ = bytes;
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    if (base_ != nullptr) munmap(base_, bytes_);
    fd_ = std::move(other.fd_);
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

}  // namespace xfer
