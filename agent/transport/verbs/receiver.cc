#include "agent/transport/verbs/receiver.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/socket.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer::verbs {
namespace {

// A peer could otherwise make this process hold any number of queue pairs.
constexpr size_t kMaxSessions = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<Receiver>> Receiver::Start(uint64_t incarnation,
                                                          const Tuning& tuning, ReceiveTable* table,
                                                          std::shared_ptr<Rails> rails,
                                                          std::shared_ptr<MemoryTable> memory) {
  std::unique_ptr<Receiver> receiver(
      new Receiver(incarnation, tuning, table, std::move(rails), std::move(memory)));
  receiver->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  receiver->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = receiver->wake_.get();
  if (!receiver->epoll_.valid() || !receiver->wake_.valid() ||
      epoll_ctl(receiver->epoll_.get(), EPOLL_CTL_ADD, receiver->wake_.get(), &event) != 0) {
    return ErrnoStatus(errno, "verbs: epoll for the receiver");
  }
  receiver->thread_ = std::thread([raw = receiver.get()] { raw->Run(); });
  return receiver;
}

Receiver::~Receiver() {
  Stop();
  {
    absl::MutexLock lock(&mu_);
    while (calls_ > 0) idle_.Wait(&mu_);
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void Receiver::Stop() {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  for (const auto& session : sessions) {
    End(session, absl::UnavailableError("the receiver is shutting down"));
  }
}

absl::StatusOr<v1::VerbsReply> Receiver::Serve(const v1::VerbsRequest& request) {
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::UnavailableError("verbs: the receiver is shutting down");
    ++calls_;
  }
  absl::StatusOr<v1::VerbsReply> reply = Dispatch(request);
  absl::MutexLock lock(&mu_);
  if (--calls_ == 0) idle_.SignalAll();
  return reply;
}

absl::StatusOr<v1::VerbsReply> Receiver::Dispatch(const v1::VerbsRequest& request) {
  v1::VerbsReply reply;
  if (request.has_hello()) {
    XFER_RETURN_IF_ERROR(Hello(request.hello(), *reply.mutable_hello()));
    return reply;
  }
  if (request.has_connect()) {
    XFER_RETURN_IF_ERROR(Connect(request.connect(), *reply.mutable_connect()));
    return reply;
  }
  XFER_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session()));
  session->Heard();
  switch (request.request_case()) {
    case v1::VerbsRequest::kExpose:
      XFER_RETURN_IF_ERROR(session->Expose(request.expose(), *memory_, *reply.mutable_expose()));
      break;
    case v1::VerbsRequest::kFinish:
      XFER_RETURN_IF_ERROR(session->Finish(request.finish(), absl::Now() + tuning_.stall_timeout,
                                           *reply.mutable_finish()));
      session->Heard();
      break;
    case v1::VerbsRequest::kKeepAlive:
      break;
    case v1::VerbsRequest::kClose:
      End(session, absl::CancelledError("the sender has closed the session"));
      break;
    default:
      return absl::UnimplementedError("verbs: a request that this version does not know");
  }
  return reply;
}

absl::Status Receiver::CheckIncarnation(const std::string& node, uint64_t expected) const {
  if (expected == incarnation_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("node '", node, "' expects incarnation ", expected, " here, which is ",
                   incarnation_, ": this agent has been restarted; connect anew"));
}

absl::Status Receiver::Hello(const v1::VerbsHello& request, v1::VerbsHelloReply& reply) {
  XFER_RETURN_IF_ERROR(CheckIncarnation(request.node(), request.expected_incarnation()));
  for (size_t i = 0; i < rails_->ports(); ++i) {
    if (!rails_->usable(i)) continue;
    XFER_ASSIGN_OR_RETURN(const Port port, rails_->Query(i));
    if (!port.active()) continue;
    v1::VerbsPort& out = *reply.add_ports();
    out.set_device(port.device);
    out.set_number(port.number);
    out.set_ethernet(port.ethernet);
    out.set_mtu(port.active_mtu);
    out.set_lid(port.lid);
    for (const Gid& gid : port.gids) {
      v1::VerbsGid& entry = *out.add_gids();
      entry.set_index(gid.index);
      entry.set_type(static_cast<uint32_t>(gid.type));
      entry.set_gid(gid.gid.raw, sizeof(gid.gid.raw));
    }
  }
  if (reply.ports_size() == 0) {
    return absl::UnavailableError(
        "verbs: the receiver has no active port; check its links (rdma link)");
  }
  return absl::OkStatus();
}

absl::Status Receiver::Connect(const v1::VerbsConnect& request, v1::VerbsConnectReply& reply) {
  XFER_RETURN_IF_ERROR(CheckIncarnation(request.node(), request.expected_incarnation()));
  uint64_t id = 0;
  while (id == 0) {
    if (getrandom(&id, sizeof(id), 0) != sizeof(id)) return ErrnoStatus(errno, "verbs: getrandom");
  }
  XFER_ASSIGN_OR_RETURN(std::shared_ptr<Session> session,
                        Session::Open(id, request, rails_, tuning_, table_, reply));
  reply.set_lease_ms(absl::ToInt64Milliseconds(tuning_.stall_timeout));
  const std::vector<int> fds = session->channels();
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("verbs: the receiver is shutting down");
  if (sessions_.size() >= kMaxSessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("verbs: ", kMaxSessions, " senders are connected"));
  }
  for (size_t rail = 0; rail < fds.size(); ++rail) {
    channels_[fds[rail]] = {session, rail};
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fds[rail];
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fds[rail], &event) != 0) {
      const int error = errno;
      for (size_t i = 0; i <= rail; ++i) channels_.erase(fds[i]);
      return ErrnoStatus(error, "verbs: epoll of a completion channel");
    }
  }
  sessions_[id] = session;
  spdlog::info("verbs: node '{}' connected, {} rails, {} queue pairs", session->peer(), fds.size(),
               reply.queue_pairs_size());
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Session>> Receiver::FindSession(uint64_t id) {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(id);
  if (it != sessions_.end()) return it->second;
  return absl::UnavailableError(
      "verbs: the receiver knows no such session (it ended, or its agent restarted)");
}

void Receiver::End(const std::shared_ptr<Session>& session, const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    sessions_.erase(session->id());
    for (const int fd : session->channels()) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
      channels_.erase(fd);
    }
  }
  session->Close(reason);
}

void Receiver::MemoryGone(const RegisteredMemory* memory) {
  std::vector<std::shared_ptr<Session>> users;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, session] : sessions_) {
      if (session->Uses(memory)) users.push_back(session);
    }
  }
  for (const auto& session : users) {
    spdlog::warn("verbs: memory that node '{}' was writing to is gone; its session ends",
                 session->peer());
    End(session, absl::FailedPreconditionError("the destination memory has gone (its rank left)"));
  }
}

void Receiver::Run() {
  std::array<epoll_event, 64> events;
  const int tick_ms = static_cast<int>(absl::ToInt64Milliseconds(
      std::clamp(tuning_.stall_timeout / 4, absl::Milliseconds(50), absl::Seconds(1))));
  while (true) {
    const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), tick_ms);
    for (int i = 0; i < n; ++i) {
      if (events[static_cast<size_t>(i)].data.fd == wake_.get()) return;
      Channel channel;
      {
        absl::MutexLock lock(&mu_);
        const auto it = channels_.find(events[static_cast<size_t>(i)].data.fd);
        if (it != channels_.end()) channel = it->second;
      }
      if (channel.session != nullptr) channel.session->Drain(channel.rail);
    }
    EndSilent();
  }
}

void Receiver::EndSilent() {
  const absl::Time oldest = absl::Now() - tuning_.stall_timeout;
  std::vector<std::shared_ptr<Session>> silent;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, session] : sessions_) {
      if (session->last_heard() < oldest) silent.push_back(session);
    }
  }
  for (const auto& session : silent) {
    spdlog::warn("verbs: nothing was heard of node '{}' for {}; its session ends", session->peer(),
                 absl::FormatDuration(tuning_.stall_timeout));
    End(session, absl::DeadlineExceededError("the sender was silent for too long"));
  }
}

}  // namespace xfer::verbs
