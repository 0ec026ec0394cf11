// The whole agent of a node.
#ifndef XFER_AGENT_SERVICE_AGENT_H_
#define XFER_AGENT_SERVICE_AGENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace xfer {

struct AgentOptions {
  std::string coordinator;  // HOST:PORT
  std::string node;         // unique name
  std::string socket = "/run/xfer/agent.sock";
  std::string listen = "127.0.0.1:0";  // HOST:PORT of the gRPC service for peers
  std::string data_listen;  // HOST:PORT of the TCP data port; "": listen's host, any port
  std::string advertise;    // host that peers use; "": listen's host
  bool insecure = false;    // allows addresses beyond loopback
  // "auto": local, tcp, and verbs where there is a usable RDMA device; else those that are to be
  // there, e.g. "local,verbs": verbs then has to work.
  std::string transport = "auto";
  // RDMA devices or ports, e.g. "mlx5_0,mlx5_1:1", or, for tcp, how many network devices carry
  // data; "": all RDMA ports that are active, one network device.
  std::string nics;
  int tcp_streams = 4;             // connections a peer
  int threads = 0;                 // that send; 0: by cores
  uint64_t chunk_bytes = 1 << 20;  // a multiple of 4096
  // A registration whose process opens no session for so long is dropped.
  absl::Duration attach_time = absl::Seconds(30);
  absl::Duration stop_grace = absl::Milliseconds(200);  // that running calls get at the end
};

// What is wrong with options, before anything is started: InvalidArgument or FailedPrecondition.
absl::Status CheckAgentOptions(const AgentOptions& options);

// Runs from Start() to its destruction. Thread-safe.
class Agent {
 public:
  // Returns once all sockets listen, whether or not the coordinator answers. AlreadyExists: a port
  // or the socket is taken; names it.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(const AgentOptions& options);
  virtual ~Agent() = default;

  // HOST:PORT as peers reach it.
  virtual const std::string& peer_address() const = 0;
  virtual const std::string& data_address() const = 0;

  // Lets go of what is held for syncs, says goodbye to the coordinator and ends everything. Takes
  // about a second at most, but for steps that are running: they are cut short.
  virtual void Stop(const std::string& reason) = 0;
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_AGENT_H_
