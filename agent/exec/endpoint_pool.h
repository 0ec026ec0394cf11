// Ways to other agents, kept from sync to sync.
#ifndef XFER_AGENT_EXEC_ENDPOINT_POOL_H_
#define XFER_AGENT_EXEC_ENDPOINT_POOL_H_

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/interfaces.h"
#include "agent/transport/transport.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// Endpoints that no sync uses at the moment wait here for the next one. Thread-safe.
class EndpointPool {
 public:
  // `self` is this agent as others see it; pointers are borrowed and outlive the pool.
  EndpointPool(v1::Peer self, std::vector<Transport*> transports, PeerIdentifier* identifier)
      : self_(std::move(self)), transports_(std::move(transports)), identifier_(identifier) {}

  const v1::Peer& self() const { return self_; }

  // The transport for a pair of nodes: `forced` or, where that is empty, local within this node and
  // tcp to another. InvalidArgument: local to another node, or an unknown transport; names both.
  absl::StatusOr<Transport*> Choose(const std::string& forced, const std::string& peer_node) const;

  // A kept endpoint that still works, or null. Does not block.
  std::unique_ptr<Endpoint> TakeIdle(const v1::Peer& peer, const Transport& transport);
  // A new endpoint: the peer is asked who it is first. FailedPrecondition: it is another agent, or
  // a later start of it, or cannot receive by this transport.
  absl::StatusOr<std::unique_ptr<Endpoint>> Open(const v1::Peer& peer, Transport& transport,
                                                 absl::Time deadline);
  // Gives back an endpoint that has nothing in flight.
  void Keep(const v1::Peer& peer, const Transport& transport, std::unique_ptr<Endpoint> endpoint);
  // Closes all that are kept.
  void Clear();

 private:
  using Key = std::tuple<std::string, std::string, uint64_t>;  // node, transport, incarnation
  static Key KeyOf(const v1::Peer& peer, const Transport& transport) {
    return {peer.node(), std::string(transport.name()), peer.incarnation()};
  }

  const v1::Peer self_;
  const std::vector<Transport*> transports_;
  PeerIdentifier* const identifier_;
  absl::Mutex mu_;
  std::map<Key, std::vector<std::unique_ptr<Endpoint>>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_ENDPOINT_POOL_H_
