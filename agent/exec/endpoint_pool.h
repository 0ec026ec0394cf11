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
  // `self` is this agent as others see it; the best transport stands first. Pointers are borrowed
  // and outlive the pool.
  EndpointPool(v1::Peer self, std::vector<Transport*> transports, PeerIdentifier* identifier)
      : self_(std::move(self)), transports_(std::move(transports)), identifier_(identifier) {}

  const v1::Peer& self() const { return self_; }

  // The transport to a peer: `forced` or, where that is empty, the best one; null where that is to
  // be found out by OpenBest(). Does not block. InvalidArgument: local to another node, or a
  // transport that this node does not have; names both.
  absl::StatusOr<Transport*> Choose(const std::string& forced, const v1::Peer& peer)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A kept endpoint that still works, or null. Does not block.
  std::unique_ptr<Endpoint> TakeIdle(const v1::Peer& peer, const Transport& transport);
  // A new endpoint: the peer is asked who it is first. FailedPrecondition: it is another agent, or
  // a later start of it, or cannot receive by this transport.
  absl::StatusOr<std::unique_ptr<Endpoint>> Open(const v1::Peer& peer, Transport& transport,
                                                 absl::Time deadline);
  // A new endpoint to another node by the best transport that both have and that connects; Choose()
  // says the same one from then on. Errors as Open(), of the last one that was tried.
  struct Opened {
    Transport* transport = nullptr;
    std::unique_ptr<Endpoint> endpoint;
  };
  absl::StatusOr<Opened> OpenBest(const v1::Peer& peer, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Gives back an endpoint that has nothing in flight.
  void Keep(const v1::Peer& peer, const Transport& transport, std::unique_ptr<Endpoint> endpoint);
  // Closes all that are kept.
  void Clear();

 private:
  using Key = std::tuple<std::string, std::string, uint64_t>;  // node, transport, incarnation
  static Key KeyOf(const v1::Peer& peer, const Transport& transport) {
    return {peer.node(), std::string(transport.name()), peer.incarnation()};
  }

  // Asks a peer who it is; FailedPrecondition as for Open().
  absl::StatusOr<PeerIdentity> Identify(const v1::Peer& peer, absl::Time deadline);
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const v1::Peer& peer, Transport& transport,
                                                    const std::string& data_address,
                                                    absl::Time deadline);

  const v1::Peer self_;
  const std::vector<Transport*> transports_;
  PeerIdentifier* const identifier_;
  absl::Mutex mu_;
  std::map<Key, std::vector<std::unique_ptr<Endpoint>>> idle_ ABSL_GUARDED_BY(mu_);
  struct Best {
    uint64_t incarnation = 0;
    Transport* transport = nullptr;
  };
  std::map<std::string, Best> best_ ABSL_GUARDED_BY(mu_);  // by node; what OpenBest() found
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_ENDPOINT_POOL_H_
