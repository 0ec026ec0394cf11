#include "client/fd_sender.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr size_t kTokenBytes = 16;

absl::StatusOr<std::string> RandomToken() {
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return absl::InternalError(absl::StrCat("getrandom: ", strerror(errno)));
  }
  return token;
}

// Waits until `fd` can be read from or written to.
absl::Status WaitFor(int fd, short events, absl::Time deadline, const std::string& path) {
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    pollfd poller = {fd, events, 0};
    const int ready = poll(&poller, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000)));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the agent did not take a descriptor on ", path, " in time"));
    }
    if (ready < 0 && errno != EINTR) {
      return absl::InternalError(absl::StrCat("poll on ", path, ": ", strerror(errno)));
    }
  }
}

absl::Status SendWithFd(int connection, int fd, const std::string& token, const std::string& path) {
  iovec data = {const_cast<char*>(token.data()), token.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(int));
  ssize_t sent = -1;
  do {
    sent = sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(token.size())) return absl::OkStatus();
  if (sent < 0 && errno == EBADF) {
    return absl::InvalidArgumentError(absl::StrCat("region descriptor ", fd, " is not open"));
  }
  return absl::UnavailableError(absl::StrCat("sending a descriptor to the agent on ", path, ": ",
                                             sent < 0 ? strerror(errno) : "cut short"));
}

}  // namespace

absl::StatusOr<FdSender> FdSender::Connect(const std::string& socket_path) {
  const std::string path = socket_path + ".fd";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the agent's socket path ", path,
                                                   " is longer than ", sizeof(address.sun_path) - 1,
                                                   " bytes: use a shorter directory"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection.valid()) return absl::InternalError(absl::StrCat("socket: ", strerror(errno)));
  // A stopped agent leaves its backlog full; the limit on sending holds for connecting too.
  const timeval limit = {10, 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
      0) {
    return absl::UnavailableError(absl::StrCat("no agent at ", path, ": ", strerror(errno),
                                               ": is xfer-agent running there?"));
  }
  return FdSender(path, std::move(connection));
}

absl::StatusOr<std::string> FdSender::Send(int fd, absl::Time deadline) {
  XFER_ASSIGN_OR_RETURN(std::string token, RandomToken());
  XFER_RETURN_IF_ERROR(WaitFor(connection_.get(), POLLOUT, deadline, path_));
  XFER_RETURN_IF_ERROR(SendWithFd(connection_.get(), fd, token, path_));
  XFER_RETURN_IF_ERROR(WaitFor(connection_.get(), POLLIN, deadline, path_));
  char answer = 1;
  const ssize_t received = recv(connection_.get(), &answer, 1, MSG_DONTWAIT);
  if (received <= 0) {
    return absl::UnavailableError(
        absl::StrCat("the agent closed ", path_, " without taking a descriptor",
                     received < 0 ? absl::StrCat(": ", strerror(errno)) : std::string()));
  }
  if (answer != 0) {
    return absl::PermissionDeniedError(absl::StrCat("the agent refused a descriptor on ", path_,
                                                    " (answer ", static_cast<int>(answer), ")"));
  }
  return token;
}

}  // namespace xfer
