// Which transports an agent has.
#ifndef XFER_AGENT_SERVICE_TRANSPORTS_H_
#define XFER_AGENT_SERVICE_TRANSPORTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/exec/receive_state.h"
#include "agent/transport/tcp.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/verbs.h"

namespace xfer {

// The option `transport`.
struct TransportNames {
  bool local = false, verbs = false, tcp = false;
  bool automatic = false;  // "auto": all three; it goes without verbs where that cannot be
};
// InvalidArgument names what is not known.
absl::StatusOr<TransportNames> ParseTransports(absl::string_view text);

// The option `nics`.
struct NicChoice {
  std::vector<std::string> names;  // RDMA devices or ports; empty: all active ones
  int32_t count = 1;               // network devices, where there is no RDMA
};
// InvalidArgument names the entry.
absl::StatusOr<NicChoice> ParseNics(absl::string_view text);

struct TransportsOptions {
  std::string transport = "auto";
  std::string nics;
  std::string node;
  uint64_t incarnation = 0;
  std::string data_listen;  // HOST:PORT of the TCP data port
  int tcp_streams = 4;
  std::shared_ptr<VerbsControl> verbs_control;
};

// Movable; its parts are thread-safe.
class Transports {
 public:
  // `receive` is borrowed and outlives the transports. The node goes on without verbs, and says so
  // once in the log, where it is not asked for by name and cannot be had; otherwise the error says
  // what is missing and what to do.
  static absl::StatusOr<Transports> Make(const TransportsOptions& options, ReceiveState& receive);

  // The best first: local, verbs, tcp.
  std::vector<Transport*> all() const;
  TcpTransport* tcp() const { return tcp_.get(); }        // null: none
  VerbsTransport* verbs() const { return verbs_.get(); }  // null: none
  // Network devices for data: the RDMA ports, where there are any.
  int32_t nics() const { return nics_; }

 private:
  std::unique_ptr<Transport> local_;
  std::unique_ptr<VerbsTransport> verbs_;
  std::unique_ptr<TcpTransport> tcp_;
  int32_t nics_ = 1;
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_TRANSPORTS_H_
