#include "agent/transport/tcp.h"

#include <sys/random.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/transport/io_loop.h"
#include "agent/transport/socket.h"
#include "agent/transport/tcp_receiver.h"
#include "agent/transport/tcp_sender.h"
#include "agent/transport/wire.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr int kMaxIoThreads = 64;

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(std::shared_ptr<IoPool> pool, std::shared_ptr<SendSession> session)
      : pool_(std::move(pool)), session_(std::move(session)) {}
  ~TcpEndpoint() override { session_->Close(); }

  absl::Status PostRange(const SendRange& range) override { return session_->PostRange(range); }
  absl::Status PostFinish(const SyncKey& sync, const Transfer& transfer, uint64_t digest) override {
    return session_->PostFinish(sync, transfer, digest);
  }
  absl::Status Poll(absl::Duration timeout, std::vector<Completion>& out) override {
    return session_->Poll(timeout, out);
  }

 private:
  const std::shared_ptr<IoPool> pool_;  // outlives the streams
  const std::shared_ptr<SendSession> session_;
};

// The receiver's answer to a hello.
absl::Status ReadHelloAnswer(int fd, absl::Time deadline) {
  std::vector<std::byte> bytes(wire::kHelloAnswerBytes);
  XFER_RETURN_IF_ERROR(ReadAll(fd, bytes.data(), bytes.size(), deadline));
  XFER_ASSIGN_OR_RETURN(const size_t message, wire::HelloAnswerMessageBytes(bytes));
  bytes.resize(bytes.size() + message);
  XFER_RETURN_IF_ERROR(ReadAll(fd, bytes.data() + wire::kHelloAnswerBytes, message, deadline));
  XFER_ASSIGN_OR_RETURN(const wire::HelloAnswer answer, wire::DecodeHelloAnswer(bytes));
  return answer.status;
}

// `streams` greeted connections to the first of the addresses that accepts one.
absl::StatusOr<std::vector<UniqueFd>> OpenConnections(const std::vector<SocketAddress>& addresses,
                                                      wire::Hello hello, absl::Time deadline) {
  std::vector<UniqueFd> fds;
  absl::Status failure;
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<UniqueFd> first = ConnectSocket(address, deadline);
    if (!first.ok()) {
      failure = first.status();
      continue;
    }
    fds.push_back(*std::move(first));
    while (fds.size() < hello.streams) {
      XFER_ASSIGN_OR_RETURN(UniqueFd fd, ConnectSocket(address, deadline));
      fds.push_back(std::move(fd));
    }
    break;
  }
  if (fds.empty()) return failure;
  for (size_t i = 0; i < fds.size(); ++i) {
    hello.stream = static_cast<uint16_t>(i);
    XFER_RETURN_IF_ERROR(WriteAll(fds[i].get(), wire::EncodeHello(hello), deadline));
  }
  for (const UniqueFd& fd : fds) XFER_RETURN_IF_ERROR(ReadHelloAnswer(fd.get(), deadline));
  return fds;
}

class TcpTransportImpl final : public TcpTransport {
 public:
  TcpTransportImpl(const TcpOptions& options, std::shared_ptr<IoPool> pool,
                   std::unique_ptr<TcpReceiver> receiver)
      : options_(options), pool_(std::move(pool)), receiver_(std::move(receiver)) {}

  absl::string_view name() const override { return "tcp"; }
  uint16_t port() const override { return receiver_->port(); }

  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress& peer,
                                                    absl::Time deadline) override {
    const std::string who = absl::StrCat("node '", peer.node, "' (", peer.data_address, ")");
    const std::string context = absl::StrCat("tcp to ", who);
    absl::StatusOr<std::vector<SocketAddress>> addresses = ResolveAddress(peer.data_address);
    if (!addresses.ok()) return Annotate(addresses.status(), context);
    wire::Hello hello;
    hello.node = options_.node;
    hello.incarnation = options_.incarnation;
    hello.expected_incarnation = peer.incarnation;
    hello.streams = static_cast<uint16_t>(options_.streams);
    if (getrandom(&hello.session, sizeof(hello.session), 0) != sizeof(hello.session)) {
      return absl::InternalError(absl::StrCat(context, ": getrandom gave no session number"));
    }
    absl::StatusOr<std::vector<UniqueFd>> fds = OpenConnections(*addresses, hello, deadline);
    if (!fds.ok()) return Annotate(fds.status(), context);
    auto session = std::make_shared<SendSession>(who, options_.chunk_bytes, options_.stall_timeout);
    auto endpoint = std::make_unique<TcpEndpoint>(pool_, session);
    for (UniqueFd& fd : *fds) {
      auto stream = std::make_shared<SendStream>(std::move(fd), pool_->Next(), session);
      session->AddStream(stream);
      XFER_RETURN_IF_ERROR(Annotate(stream->Open(), context));
    }
    return endpoint;
  }

 private:
  const TcpOptions options_;
  const std::shared_ptr<IoPool> pool_;
  const std::unique_ptr<TcpReceiver> receiver_;
};

absl::Status CheckOptions(const TcpOptions& options) {
  if (options.table == nullptr)
    return absl::InvalidArgumentError("tcp: no receive table was given");
  if (options.streams < 1 || options.streams > wire::kMaxStreams) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tcp: ", options.streams, " streams a peer; it takes 1 to ", wire::kMaxStreams));
  }
  if (options.io_threads < 0 || options.io_threads > kMaxIoThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp: ", options.io_threads, " I/O threads; it takes 0 to ", kMaxIoThreads));
  }
  if (options.node.size() > wire::kMaxNodeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tcp: the node name has ", options.node.size(),
                                                   " bytes, at most ", wire::kMaxNodeBytes));
  }
  if (options.stall_timeout <= absl::ZeroDuration() || options.max_connections < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp: stall_timeout ", absl::FormatDuration(options.stall_timeout),
                     " and max_connections ", options.max_connections, " must be positive"));
  }
  if (options.chunk_bytes == 0 || options.chunk_bytes % kDigestLeafBytes != 0 ||
      options.chunk_bytes > wire::kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tcp: chunk_bytes ", options.chunk_bytes,
                                                   " must be a multiple of ", kDigestLeafBytes,
                                                   ", at most ", wire::kMaxPayloadBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> MakeTcpTransport(const TcpOptions& options) {
  XFER_RETURN_IF_ERROR(CheckOptions(options));
  int threads = options.io_threads;
  if (threads == 0)
    threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
  const absl::Duration tick =
      std::clamp(options.stall_timeout / 8, absl::Milliseconds(5), absl::Milliseconds(250));
  XFER_ASSIGN_OR_RETURN(std::shared_ptr<IoPool> pool, IoPool::Start(threads, tick));
  absl::StatusOr<std::unique_ptr<TcpReceiver>> receiver = TcpReceiver::Start(options, pool);
  if (!receiver.ok()) return Annotate(receiver.status(), "tcp");
  return std::make_unique<TcpTransportImpl>(options, std::move(pool), *std::move(receiver));
}

}  // namespace xfer
