#include "common/rpc/server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace xfer {
namespace {

// No single request is larger: whatever is big is streamed in parts.
constexpr int kMaxRequestBytes = 64 << 20;

struct HostPort {
  std::string host;
  int port = 0;
};

absl::StatusOr<HostPort> ParseHostPort(const std::string& address, const std::string& what) {
  const size_t colon = address.rfind(':');
  HostPort out;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &out.port) || out.port < 0 || out.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " \"", address,
                     "\" is not HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:7300"));
  }
  out.host = address.substr(0, colon);
  if (out.host.size() >= 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (absl::StrContains(out.host, ':')) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " \"", address, "\": an IPv6 address needs brackets, such as [::1]:7300"));
  }
  return out;
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

// gRPC does not say why it could not listen; binding once more by hand does.
absl::Status ExplainListenFailure(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address, "address");
  if (!parsed.ok()) return parsed.status();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(parsed->host.c_str(), absl::StrCat(parsed->port).c_str(), &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  }
  const UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int bound = bind(fd.get(), found->ai_addr, found->ai_addrlen);
  const int error = errno;
  freeaddrinfo(found);
  if (bound != 0 && error == EADDRINUSE) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen on ", address,
                     ": the port is taken; choose another one, or find its "
                     "holder with: ss -ltnp 'sport = :",
                     parsed->port, "'"));
  }
  if (bound != 0) {
    char text[128];
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", strerror_r(error, text, sizeof text)));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, ": the port was taken for a moment; try again"));
}

void InitGrpcOnce() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

absl::Status CheckListenAddress(const std::string& address, bool insecure,
                                const std::string& what) {
  XFER_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address, what));
  if (insecure || IsLoopback(parsed.host)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " ", address,
      " is not a loopback address, and whoever reaches it could write weights: ",
      "listen on 127.0.0.1, or pass --insecure on a network that only this cluster can reach"));
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options) {
  const bool unix_socket = absl::StartsWith(options.address, "unix:");
  if (!unix_socket) {
    XFER_RETURN_IF_ERROR(CheckListenAddress(options.address, options.insecure, "listen address"));
  }
  InitGrpcOnce();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  auto server = std::unique_ptr<RpcServer>(new RpcServer);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || (!unix_socket && port == 0)) {
    if (unix_socket) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options.address,
                       ": check that its directory exists and may be written"));
    }
    return ExplainListenFailure(options.address);
  }
  server->port_ = unix_socket ? 0 : port;
  return server;
}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
}

}  // namespace xfer
