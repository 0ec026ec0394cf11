#include "agent/transport/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr int kBacklog = 1024;

int PollMillis(absl::Time deadline) {
  const absl::Duration left = deadline - absl::Now();
  if (left <= absl::ZeroDuration()) return 0;
  // Rounded up, so that the last wait does not spin.
  const int64_t millis = absl::ToInt64Milliseconds(left) + 1;
  return static_cast<int>(std::min<int64_t>(millis, std::numeric_limits<int>::max()));
}

}  // namespace

absl::Status ErrnoStatus(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", std::generic_category().message(error));
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EINVAL:
      return absl::InvalidArgumentError(message);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", port());
  }
  const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", port());
}

uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

absl::StatusOr<std::vector<SocketAddress>> ResolveAddress(absl::string_view host_port) {
  const size_t colon = host_port.rfind(':');
  absl::string_view host = host_port.substr(0, std::min(colon, host_port.size()));
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  uint32_t port = 0;
  if (colon == absl::string_view::npos || host.empty() ||
      (!bracketed && host.find(':') != absl::string_view::npos) ||
      !absl::SimpleAtoi(host_port.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address \"", host_port, "\" is not HOST:PORT or [IPV6]:PORT with a port up to 65535"));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string host_text(host);
  const int error = getaddrinfo(host_text.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("address \"", host_port, "\" cannot be resolved: ", gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.bytes = info->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  if (addresses.empty()) {
    return absl::UnavailableError(absl::StrCat("address \"", host_port, "\" has no IP address"));
  }
  return addresses;
}

absl::StatusOr<UniqueFd> Listen(absl::string_view host_port) {
  XFER_ASSIGN_OR_RETURN(const auto addresses, ResolveAddress(host_port));
  const SocketAddress& address = addresses.front();
  const std::string what = absl::StrCat("listen on ", address.ToString());
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, what);
  // On Linux this lets a restarted agent have its port back while old connections are in TIME_WAIT;
  // unlike SO_REUSEPORT it never lets two sockets listen on one address.
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    absl::Status status = ErrnoStatus(error, what);
    if (error == EADDRINUSE) {
      return absl::AlreadyExistsError(
          absl::StrCat(status.message(), "; stop the other process or choose another port"));
    }
    return status;
  }
  return fd;
}

absl::StatusOr<SocketAddress> LocalAddress(int fd) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return ErrnoStatus(errno, "getsockname");
  }
  return address;
}

absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address, absl::Time deadline) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  SetDataSocketOptions(fd.get());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) == 0) {
    return fd;
  }
  if (errno != EINPROGRESS && errno != EINTR) return ErrnoStatus(errno, "connect");
  XFER_RETURN_IF_ERROR(Annotate(WaitFor(fd.get(), POLLOUT, deadline), "connect"));
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error != 0) return ErrnoStatus(error, "connect");
  return fd;
}

absl::Status WaitFor(int fd, short events, absl::Time deadline) {
  while (true) {
    pollfd entry = {fd, events, 0};
    const int millis = PollMillis(deadline);
    const int ready = poll(&entry, 1, millis);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (absl::Now() >= deadline) return absl::DeadlineExceededError("no answer until the deadline");
  }
}

absl::Status WriteAll(int fd, absl::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      XFER_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
    } else if (n < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "send");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, void* out, size_t bytes, absl::Time deadline) {
  auto* at = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
    if (n > 0) {
      at += n;
      bytes -= static_cast<size_t>(n);
    } else if (n == 0) {
      return absl::UnavailableError("recv: the peer closed the connection");
    } else if (errno == EAGAIN) {
      XFER_RETURN_IF_ERROR(WaitFor(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "recv");
    }
  }
  return absl::OkStatus();
}

void SetDataSocketOptions(int fd) {
  // Failures leave a connection that works, only slower; nothing to report.
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  const int idle_seconds = 30, interval_seconds = 10, probes = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof(interval_seconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

}  // namespace xfer
