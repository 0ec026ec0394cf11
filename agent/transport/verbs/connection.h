// Sets up the sending end of an endpoint: which port goes to which, GIDs, MTU, queue pairs.
#ifndef XFER_AGENT_TRANSPORT_VERBS_CONNECTION_H_
#define XFER_AGENT_TRANSPORT_VERBS_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/control.h"
#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs/objects.h"
#include "agent/transport/verbs/options.h"
#include "agent/transport/verbs/rails.h"

namespace xfer::verbs {

// One of this node's ports, one of the peer's, and the queue pairs between them, ready to send.
struct ConnectedRail {
  size_t port = 0;    // of Rails
  size_t device = 0;  // of Rails
  std::string name;   // "rxe0:1 GID 192.0.2.1 -> rxe0:1 GID 192.0.2.2, MTU 4096", for messages
  CompletionChannel channel;
  CompletionQueue cq;
  std::vector<QueuePair> pairs;
};
struct Connection {
  uint64_t session = 0;
  absl::Duration lease;
  uint32_t requests = 0;  // send requests of each queue pair, and receive requests at its other end
  uint32_t pieces = 0;    // source pieces of a request
  std::vector<ConnectedRail> rails;
};

// Rail i joins active port i here to active port i there, modulo their numbers: node builders
// number the NICs of a rail alike on all nodes, so that a rail stays within its own switches. Pairs
// of ports that cannot reach each other (no GIDs of one kind, InfiniBand and Ethernet) are left
// out; FailedPrecondition if none is left.
absl::StatusOr<Connection> ConnectTo(const PeerAddress& peer, const std::string& own_node,
                                     const Rails& rails, const Tuning& tuning,
                                     VerbsControl& control, absl::Time deadline);

// How two lists of ports are joined, as above; indexes and the GIDs chosen.
struct RailChoice {
  size_t local = 0, remote = 0;
  GidPair gids;
  uint32_t mtu = 0;  // bytes, the smaller of both
};
absl::StatusOr<std::vector<RailChoice>> ChooseRails(absl::Span<const Port> local,
                                                    absl::Span<const Port> remote);

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_CONNECTION_H_
