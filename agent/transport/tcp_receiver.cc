#include "agent/transport/tcp_receiver.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/socket.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer {

// Accepts connections on the pool's first loop.
class TcpReceiver::Listener final : public IoHandler,
                                    public std::enable_shared_from_this<Listener> {
 public:
  Listener(UniqueFd fd, TcpReceiver* receiver) : fd_(std::move(fd)), receiver_(receiver) {}

  void OnEvents(uint32_t) override {
    // A bounded number at a time, so that a flood of connections does not keep the loop.
    for (int i = 0; i < 64; ++i) {
      SocketAddress peer;
      peer.bytes = sizeof(peer.storage);
      UniqueFd fd(accept4(fd_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.bytes,
                          SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.valid()) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
        // Out of descriptors or memory: until the next tick there is no use in trying again.
        spdlog::warn("tcp: {}", ErrnoStatus(errno, "accept").ToString());
        Pause(true);
        return;
      }
      receiver_->Accepted(std::move(fd), peer.ToString());
    }
  }

  void OnTick(int64_t) override { Pause(false); }

  absl::Status Open(IoLoop* loop) {
    loop_ = loop;
    return loop_->Add(fd_.get(), EPOLLIN, shared_from_this());
  }
  void Close() {
    loop_->Remove(fd_.get());
    fd_.reset();
  }

 private:
  void Pause(bool on) {
    if (std::exchange(paused_, on) != on) loop_->Modify(fd_.get(), on ? 0u : uint32_t{EPOLLIN});
  }

  UniqueFd fd_;
  TcpReceiver* const receiver_;
  IoLoop* loop_ = nullptr;
  bool paused_ = false;
};

absl::StatusOr<std::unique_ptr<TcpReceiver>> TcpReceiver::Start(const TcpOptions& options,
                                                                std::shared_ptr<IoPool> pool) {
  XFER_ASSIGN_OR_RETURN(UniqueFd fd, Listen(options.listen_address));
  XFER_ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(fd.get()));
  auto receiver = std::unique_ptr<TcpReceiver>(new TcpReceiver(options, std::move(pool)));
  receiver->port_ = address.port();
  auto listener = std::make_shared<Listener>(std::move(fd), receiver.get());
  IoLoop* loop = receiver->pool_->loops().front().get();
  absl::Status status;
  loop->RunSync([&] { status = listener->Open(loop); });
  XFER_RETURN_IF_ERROR(status);
  receiver->listener_ = std::move(listener);
  return receiver;
}

TcpReceiver::~TcpReceiver() {
  if (listener_ == nullptr) return;
  pool_->loops().front()->RunSync([this] { listener_->Close(); });
  // Streams that were accepted and handed to their loops are open after this, and no more will
  // come.
  for (const auto& loop : pool_->loops()) loop->RunSync([] {});
  std::vector<std::shared_ptr<ReceiveStream>> streams;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [raw, weak] : streams_) {
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
    }
  }
  for (const auto& stream : streams) stream->Close("the transport is shut down", /*wait=*/true);
  // A close in progress on a loop's own account ends before this.
  for (const auto& loop : pool_->loops()) loop->RunSync([] {});
}

void TcpReceiver::Accepted(UniqueFd fd, std::string address) {
  {
    absl::MutexLock lock(&mu_);
    if (streams_.size() >= static_cast<size_t>(options_.max_connections)) {
      spdlog::warn("tcp: connection from {} closed: {} connections are open, the most allowed",
                   address, streams_.size());
      return;
    }
  }
  SetDataSocketOptions(fd.get());
  IoLoop* loop = pool_->Next();
  auto stream = std::make_shared<ReceiveStream>(std::move(fd), std::move(address), loop, this);
  {
    absl::MutexLock lock(&mu_);
    streams_[stream.get()] = stream;
  }
  loop->Post([stream] { stream->Open(); });
}

void TcpReceiver::Closed(ReceiveStream* stream) {
  absl::MutexLock lock(&mu_);
  streams_.erase(stream);
  absl::erase_if(sessions_, [](const auto& entry) { return entry.second.expired(); });
}

absl::StatusOr<std::shared_ptr<ReceiveSession>> TcpReceiver::Greet(const wire::Hello& hello,
                                                                   absl::string_view address) {
  if (hello.version != wire::kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "node '", options_.node, "' speaks protocol version ", wire::kProtocolVersion, ", node '",
        hello.node, "' version ", hello.version, "; run the same xfer on both"));
  }
  if (hello.expected_incarnation != options_.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "node '", options_.node, "' has incarnation ", options_.incarnation, ", not ",
        hello.expected_incarnation, "; its agent was restarted, so ask the coordinator again"));
  }
  absl::MutexLock lock(&mu_);
  std::weak_ptr<ReceiveSession>& known = sessions_[hello.session];
  std::shared_ptr<ReceiveSession> session = known.lock();
  const std::string peer =
      absl::StrCat("node '", hello.node, "' (incarnation ", hello.incarnation, ")");
  if (session == nullptr) {
    session = std::make_shared<ReceiveSession>(hello.session, peer, options_.table);
    known = session;
  } else if (session->peer() != peer) {
    return absl::InvalidArgumentError(
        absl::StrCat("connection from ", address, " names a session of ", session->peer()));
  }
  return session;
}

}  // namespace xfer
