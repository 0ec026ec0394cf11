#include "agent/memory/fd_receiver.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/memory/unix_socket.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// A message comes in one piece from an honest client; half of one must not occupy a connection.
constexpr absl::Duration kMessageTimeout = absl::Seconds(5);
// Also the pace at which descriptors that nobody took are dropped.
constexpr int kTickMs = 1000;
constexpr size_t kMaxFdsPerRead = 8;

absl::Status CheckPeer(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::InternalError(absl::StrCat("SO_PEERCRED: ", strerror(errno)));
  }
  if (peer.uid == geteuid() || peer.uid == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("process ", peer.pid, " runs as user ", peer.uid,
                                                  "; only user ", geteuid(),
                                                  " and root may register memory with this agent"));
}

void Answer(int socket, char answer) {
  // A peer that does not read its one byte loses it; it is about to be closed or to send more.
  if (send(socket, &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    spdlog::debug("descriptor socket: the peer does not take its answer: {}", strerror(errno));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<FdReceiver>> FdReceiver::Start(const FdReceiverOptions& options) {
  std::unique_ptr<FdReceiver> receiver(new FdReceiver(options));
  receiver->stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!receiver->stop_.valid()) {
    return absl::InternalError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  XFER_ASSIGN_OR_RETURN(receiver->listener_, ListenUnix(options.path));
  receiver->thread_ = std::thread(&FdReceiver::Run, receiver.get());
  return receiver;
}

FdReceiver::~FdReceiver() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof(one)) != sizeof(one)) {
    spdlog::error("descriptor socket: eventfd: {}", strerror(errno));
  }
  thread_.join();
  unlink(options_.path.c_str());
}

absl::StatusOr<UniqueFd> FdReceiver::Take(absl::string_view token) {
  if (token.size() != kFdTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a descriptor's token has ", token.size(),
                                                   " bytes; it must have ", kFdTokenBytes));
  }
  Expire();
  absl::MutexLock lock(&mu_);
  auto found = waiting_.find(token);
  if (found == waiting_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "no descriptor with this token came on ", options_.path, ", or it waited longer than ",
        absl::FormatDuration(options_.token_lifetime), ": send it again and register at once"));
  }
  UniqueFd fd = std::move(found->second.fd);
  waiting_.erase(found);
  return fd;
}

size_t FdReceiver::waiting() const {
  absl::MutexLock lock(&mu_);
  return waiting_.size();
}

void FdReceiver::Expire() {
  const int64_t now = options_.clock->MonotonicNanos();
  absl::MutexLock lock(&mu_);
  absl::erase_if(waiting_, [now](const auto& entry) { return entry.second.expires_ns <= now; });
}

void FdReceiver::Run() {
  std::list<Connection> connections;
  std::vector<pollfd> polled;
  while (true) {
    polled.assign({{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    for (const Connection& connection : connections) {
      polled.push_back({connection.socket.get(), POLLIN, 0});
    }
    const bool tick = !connections.empty() || waiting() > 0;
    if (poll(polled.data(), polled.size(), tick ? kTickMs : -1) < 0 && errno != EINTR) {
      spdlog::error("descriptor socket: poll: {}", strerror(errno));
    }
    if (polled[0].revents != 0) return;
    size_t at = 2;
    const int64_t now = options_.clock->MonotonicNanos();
    for (Connection& connection : connections) {
      if (polled[at++].revents != 0) Read(connection);
      if (!connection.token.empty() &&
          now - connection.started_ns > absl::ToInt64Nanoseconds(kMessageTimeout)) {
        spdlog::warn("descriptor socket: a message was not complete within {}; closed",
                     absl::FormatDuration(kMessageTimeout));
        connection.closed = true;
      }
    }
    connections.remove_if([](const Connection& connection) { return connection.closed; });
    if (polled[1].revents != 0) Accept(connections);
    Expire();
  }
}

void FdReceiver::Accept(std::list<Connection>& connections) {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      spdlog::error("descriptor socket: accept: {}", strerror(errno));
    }
    return;
  }
  absl::Status status = CheckPeer(socket.get());
  if (status.ok() && connections.size() >= options_.max_connections) {
    status = absl::ResourceExhaustedError(
        absl::StrCat(connections.size(), " processes are connected already"));
  }
  if (!status.ok()) {
    spdlog::warn("descriptor socket: refused a connection: {}", std::string(status.message()));
    return;
  }
  connections.push_back({std::move(socket)});
}

void FdReceiver::Read(Connection& connection) {
  while (!connection.closed) {
    bool more = false;
    absl::Status status = Receive(connection, more);
    if (status.ok() && connection.token.size() == kFdTokenBytes) status = Keep(connection);
    if (!status.ok()) {
      spdlog::warn("descriptor socket: refused a message: {}", std::string(status.message()));
      Answer(connection.socket.get(), 1);
      connection.closed = true;
    }
    if (!more) return;
  }
}

absl::Status FdReceiver::Receive(Connection& connection, bool& more) {
  std::array<char, kFdTokenBytes> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFdsPerRead)> control;
  iovec data = {bytes.data(), kFdTokenBytes - connection.token.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(connection.socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got <= 0) {
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
    connection.closed = true;
    return absl::OkStatus();
  }
  more = true;
  // Every descriptor gets an owner before anything is refused, so that none leaks.
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      connection.fds.emplace_back(fd);
    }
  }
  if (connection.token.empty()) connection.started_ns = options_.clock->MonotonicNanos();
  connection.token.append(bytes.data(), static_cast<size_t>(got));
  if ((message.msg_flags & MSG_CTRUNC) != 0 || connection.fds.size() > 1) {
    return absl::InvalidArgumentError("more than one descriptor in a message");
  }
  return absl::OkStatus();
}

absl::Status FdReceiver::Keep(Connection& connection) {
  if (connection.fds.empty()) return absl::InvalidArgumentError("a token without a descriptor");
  Expire();
  {
    absl::MutexLock lock(&mu_);
    if (waiting_.size() >= options_.max_waiting) {
      return absl::ResourceExhaustedError(
          absl::StrCat(waiting_.size(), " descriptors wait to be registered already"));
    }
    const int64_t expires =
        options_.clock->MonotonicNanos() + absl::ToInt64Nanoseconds(options_.token_lifetime);
    auto [entry, inserted] = waiting_.try_emplace(connection.token);
    if (!inserted) return absl::AlreadyExistsError("a token that is in use");
    entry->second = {std::move(connection.fds.front()), expires};
  }
  connection.fds.clear();
  connection.token.clear();
  Answer(connection.socket.get(), 0);
  return absl::OkStatus();
}

}  // namespace xfer
