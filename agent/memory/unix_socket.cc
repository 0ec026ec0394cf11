#include "agent/memory/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr mode_t kSocketMode = 0660;
constexpr int kBacklog = 64;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path \"", path, "\" has ", path.size(),
                                                   " bytes; 1 to ", sizeof(address.sun_path) - 1,
                                                   " are possible: use a shorter directory"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status MakeParent(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (parent.empty() || std::filesystem::exists(parent)) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot make the directory ", parent.string(), " for the agent's socket: ", error.message(),
        "; make it, or choose another place with --socket"));
  }
  // The umask may have left less than every local process needs to reach the socket inside.
  std::filesystem::permissions(parent, static_cast<std::filesystem::perms>(0755), error);
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareUnixSocket(const std::string& path) {
  XFER_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  XFER_RETURN_IF_ERROR(MakeParent(path));
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("cannot look at ", path, ": ", strerror(errno)));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists and is no socket; remove it or choose another --socket"));
  }
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return absl::InternalError(absl::StrCat("socket: ", strerror(errno)));
  // EAGAIN is a living listener with a full backlog.
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return absl::AlreadyExistsError(absl::StrCat("another process listens on ", path,
                                                 "; stop that agent or choose another --socket"));
  }
  if (errno != ECONNREFUSED) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot tell whether ", path, " is in use: ", strerror(errno)));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot remove the old socket ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path) {
  XFER_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  XFER_RETURN_IF_ERROR(PrepareUnixSocket(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::InternalError(absl::StrCat("socket: ", strerror(errno)));
  // The file takes its mode from the socket, so nobody gets in between bind and chmod.
  if (fchmod(fd.get(), kSocketMode) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), kSocketMode) != 0 || listen(fd.get(), kBacklog) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", path, ": ", strerror(errno)));
  }
  return fd;
}

}  // namespace xfer
