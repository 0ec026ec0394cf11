// The gRPC server that both daemons use.
#ifndef XFER_COMMON_RPC_SERVER_H_
#define XFER_COMMON_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace xfer {

struct RpcServerOptions {
  // HOST:PORT (port 0: any free one) or unix:PATH. A host that is not a loopback address is refused
  // unless `insecure` is set: there is no TLS yet.
  std::string address = "127.0.0.1:0";
  bool insecure = false;
  std::vector<grpc::Service*> services;  // borrowed; outlive the server
};

// A running server with health checking and reflection. Thread-safe.
class RpcServer {
 public:
  // AlreadyExists: the port is taken (SO_REUSEPORT is off); the message names address and remedy.
  // InvalidArgument: a bad address. FailedPrecondition: an address that needs `insecure`.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options);
  ~RpcServer();

  int port() const { return port_; }  // 0 for a Unix socket
  // Ends accepting, gives running calls `grace` to end, then cancels them; returns when all have
  // ended.
  void Shutdown(absl::Duration grace);

 private:
  RpcServer() = default;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

// InvalidArgument / FailedPrecondition as above; also used by the agent for its data port.
absl::Status CheckListenAddress(const std::string& address, bool insecure, const std::string& what);

}  // namespace xfer

#endif  // XFER_COMMON_RPC_SERVER_H_
