#include "agent/service/agent.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/exec/executor.h"
#include "agent/memory/fd_receiver.h"
#include "agent/memory/unix_socket.h"
#include "agent/service/coordinator_session.h"
#include "agent/service/local_agent.h"
#include "agent/service/peers.h"
#include "agent/service/rank_sessions.h"
#include "agent/service/registrar.h"
#include "agent/service/transports.h"
#include "agent/transport/verbs/rpc_control.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/rpc/server.h"

namespace xfer {
namespace {

// With its brackets, where it is an IPv6 address.
std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::string WithPort(const std::string& host, int port) { return absl::StrCat(host, ":", port); }

bool IsWildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "[::]" || host == "*";
}

absl::StatusOr<uint64_t> RandomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
      return absl::InternalError(absl::StrCat("getrandom: ", strerror(errno)));
    }
  }
  return number;
}

AgentOptions WithDefaults(AgentOptions options) {
  if (options.data_listen.empty()) options.data_listen = WithPort(HostOf(options.listen), 0);
  if (options.advertise.empty()) options.advertise = HostOf(options.listen);
  return options;
}

class AgentImpl final : public Agent, public SessionHandler {
 public:
  explicit AgentImpl(AgentOptions options) : options_(std::move(options)) {}
  ~AgentImpl() override { Stop("the agent ends"); }

  absl::Status Begin();

  const std::string& peer_address() const override { return peer_address_; }
  const std::string& data_address() const override { return data_address_; }
  void Stop(const std::string& reason) override;

  // SessionHandler
  void OnCommand(v1::AgentCommand command) override;
  void OnSessionBroken(const absl::Status& reason) override { executor_->SessionBroken(reason); }
  void OnLost(const absl::Status& reason) override { executor_->AbandonAll(reason); }
  std::vector<RankPin> RanksToPublish() override { return ranks_->All(); }

 private:
  absl::Status StartTransports();
  absl::Status StartPeerServer();
  void MakeParts();
  absl::Status StartLocalServer();

  const AgentOptions options_;
  uint64_t incarnation_ = 0;
  std::string peer_address_;
  std::string data_address_;

  // In the order of construction; each may use those above it.
  ReceiveState receive_;
  std::optional<Transports> transports_;
  std::optional<RankTable> ranks_;
  std::optional<PeerClient> peer_client_;
  std::optional<EndpointPool> endpoints_;
  std::optional<PeerAgentService> peer_service_;
  std::unique_ptr<RpcServer> peer_server_;
  std::optional<CoordinatorSession> coordinator_;
  std::unique_ptr<FdReceiver> fds_;
  std::optional<Registrar> registrar_;
  std::optional<RankSessions> sessions_;
  std::optional<SyncExecutor> executor_;
  std::optional<LocalAgentService> local_service_;
  std::unique_ptr<RpcServer> local_server_;
  bool running_ = false;
};

absl::Status AgentImpl::StartTransports() {
  TransportsOptions options;
  options.transport = options_.transport;
  options.nics = options_.nics;
  options.node = options_.node;
  options.incarnation = incarnation_;
  options.data_listen = options_.data_listen;
  options.tcp_streams = options_.tcp_streams;
  options.verbs_control = std::make_shared<verbs::RpcControl>();
  XFER_ASSIGN_OR_RETURN(transports_, Transports::Make(options, receive_));
  if (transports_->tcp() != nullptr) {
    data_address_ = WithPort(options_.advertise, transports_->tcp()->port());
  }
  return absl::OkStatus();
}

absl::Status AgentImpl::StartPeerServer() {
  v1::IdentifyReply self;
  self.set_node(options_.node);
  self.set_incarnation(incarnation_);
  self.set_data_address(data_address_);
  for (const Transport* transport : transports_->all()) {
    if (transport->name() != "local") self.add_transports(std::string(transport->name()));
  }
  peer_service_.emplace(self, transports_->verbs());
  RpcServerOptions server;
  server.address = options_.listen;
  server.insecure = options_.insecure;
  server.services = {&*peer_service_};
  XFER_ASSIGN_OR_RETURN(peer_server_, RpcServer::Start(server));
  peer_address_ = WithPort(options_.advertise, peer_server_->port());
  return absl::OkStatus();
}

void AgentImpl::MakeParts() {
  SessionOptions session;
  session.coordinator = options_.coordinator;
  session.hello.set_node(options_.node);
  session.hello.set_incarnation(incarnation_);
  session.hello.set_peer_address(peer_address_);
  session.hello.set_data_address(data_address_);
  session.hello.set_version(XFER_VERSION);
  session.hello.set_nics(transports_->nics());
  coordinator_.emplace(session);

  v1::Peer self;
  self.set_node(options_.node);
  self.set_incarnation(incarnation_);
  self.set_peer_address(peer_address_);
  self.set_data_address(data_address_);
  peer_client_.emplace(options_.node);
  endpoints_.emplace(self, transports_->all(), &*peer_client_);

  RegistrarOptions registrar;
  registrar.node = options_.node;
  registrar.nics = transports_->nics();
  registrar.attach_time = options_.attach_time;
  registrar_.emplace(registrar, &*ranks_, fds_.get(), &*coordinator_,
                     [this](const LocalRank& rank) { executor_->RankGone(rank); });
  sessions_.emplace(&*registrar_);
  registrar_->SetSessions(&*sessions_);

  ExecutorOptions executor;
  executor.node = options_.node;
  executor.chunk_bytes = options_.chunk_bytes;
  executor.threads = options_.threads;
  executor_.emplace(executor, &*ranks_, &receive_, &*endpoints_, &*sessions_, &*coordinator_);

  v1::AgentStatus status;
  status.set_node(options_.node);
  status.set_incarnation(incarnation_);
  status.set_coordinator(options_.coordinator);
  status.set_version(XFER_VERSION);
  local_service_.emplace(status, &*ranks_, &*registrar_, &*sessions_, &*coordinator_);
}

absl::Status AgentImpl::StartLocalServer() {
  RpcServerOptions server;
  server.address = absl::StrCat("unix:", options_.socket);
  server.services = {&*local_service_};
  XFER_ASSIGN_OR_RETURN(local_server_, RpcServer::Start(server));
  // Owner and group only: whoever reaches this socket can register memory and unregister ranks.
  if (chmod(options_.socket.c_str(), 0660) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot set the mode of ", options_.socket, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status AgentImpl::Begin() {
  // The socket says whether another agent lives here, so it is looked at before any port is taken.
  XFER_RETURN_IF_ERROR(PrepareUnixSocket(options_.socket));
  XFER_ASSIGN_OR_RETURN(incarnation_, RandomNumber());
  XFER_RETURN_IF_ERROR(StartTransports());
  XFER_ASSIGN_OR_RETURN(const uint64_t first_id, RandomNumber());
  // Far from wrapping, whatever it is.
  ranks_.emplace(first_id >> 1, transports_->all());
  XFER_RETURN_IF_ERROR(StartPeerServer());
  FdReceiverOptions fds;
  fds.path = options_.socket + ".fd";
  XFER_ASSIGN_OR_RETURN(fds_, FdReceiver::Start(fds));
  MakeParts();
  XFER_RETURN_IF_ERROR(StartLocalServer());
  running_ = true;
  coordinator_->Start(this);
  return absl::OkStatus();
}

void AgentImpl::OnCommand(v1::AgentCommand command) {
  switch (command.command_case()) {
    case v1::AgentCommand::kStep:
      executor_->HandleStep(std::move(*command.mutable_step()));
      break;
    case v1::AgentCommand::kEndSync:
      executor_->HandleEndSync(command.end_sync());
      break;
    case v1::AgentCommand::kForgetPlan:
      executor_->ForgetPlan(command.forget_plan().plan_id());
      break;
    default:
      spdlog::warn("the coordinator sent a command that this agent does not know: {}",
                   static_cast<int>(command.command_case()));
  }
}

void AgentImpl::Stop(const std::string& reason) {
  if (!std::exchange(running_, false)) return;
  spdlog::info("stopping: {}", reason);
  // Ranks that are held back are let go while their sessions can still be told.
  executor_->AbandonAll(absl::CancelledError(absl::StrCat("the agent stops: ", reason)));
  coordinator_->Stop(reason);
  local_server_->Shutdown(options_.stop_grace);
  if (transports_->verbs() != nullptr) transports_->verbs()->StopReceiving();
  peer_server_->Shutdown(absl::ZeroDuration());
  registrar_->Stop();
  unlink(options_.socket.c_str());
}

}  // namespace

absl::Status CheckAgentOptions(const AgentOptions& given) {
  XFER_RETURN_IF_ERROR(CheckListenAddress(given.listen, given.insecure, "--listen"));
  const AgentOptions options = WithDefaults(given);
  XFER_RETURN_IF_ERROR(CheckListenAddress(options.data_listen, options.insecure, "--data-listen"));
  if (options.coordinator.empty()) {
    return absl::InvalidArgumentError("no coordinator: give --coordinator HOST:PORT");
  }
  if (options.node.empty())
    return absl::InvalidArgumentError("an empty node name: give --node NAME");
  if (IsWildcard(options.advertise)) {
    return absl::InvalidArgumentError(
        absl::StrCat("peers cannot reach ", options.advertise,
                     ": give the host by which they reach this node with --advertise HOST"));
  }
  if (options.chunk_bytes == 0 || options.chunk_bytes % kDigestLeafBytes != 0 ||
      options.chunk_bytes > (16 << 20)) {
    return absl::InvalidArgumentError(absl::StrCat("chunks of ", options.chunk_bytes,
                                                   " bytes; take a multiple of ", kDigestLeafBytes,
                                                   " up to 16 MiB"));
  }
  if (options.tcp_streams < 1 || options.tcp_streams > 64 || options.threads < 0 ||
      options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.tcp_streams, " TCP streams, ", options.threads,
                     " threads: there must be 1 to 64 streams and 0 to 1024 threads"));
  }
  XFER_RETURN_IF_ERROR(ParseTransports(options.transport).status());
  return ParseNics(options.nics).status();
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& options) {
  XFER_RETURN_IF_ERROR(CheckAgentOptions(options));
  auto agent = std::make_unique<AgentImpl>(WithDefaults(options));
  XFER_RETURN_IF_ERROR(agent->Begin());
  return std::unique_ptr<Agent>(std::move(agent));
}

}  // namespace xfer
