// `verbs`: RDMA writes from the source's memory straight into the destination's, over InfiniBand or
// RoCE.
//
// Both ends' memory must be Register()ed: source memory that is not is refused by PostRange(),
// destination memory by the transfer's completion (FailedPrecondition, both name the range).
#ifndef XFER_AGENT_TRANSPORT_VERBS_VERBS_H_
#define XFER_AGENT_TRANSPORT_VERBS_VERBS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/transport/transport.h"
#include "agent/transport/verbs/control.h"
#include "agent/transport/verbs/options.h"
#include "xfer/v1/agent.pb.h"

namespace xfer {

struct VerbsOptions {
  std::string node;                       // own name, for messages
  uint64_t incarnation = 0;               // own; a peer that expects another one is refused
  ReceiveTable* table = nullptr;          // borrowed; outlives the transport
  std::shared_ptr<VerbsControl> control;  // the way to peers' Serve()
  verbs::Tuning tuning;
};

// Thread-safe. Its endpoints may outlive it, but cannot send from memory that is not registered any
// more.
class VerbsTransport : public Transport {
 public:
  // Answers a peer's control request; may wait for as long as tuning.stall_timeout and the receive
  // table's digests take, so it must not be called on a thread that others wait for.
  virtual absl::StatusOr<v1::VerbsReply> Serve(const v1::VerbsRequest& request) = 0;
  // Nothing is received from now on: calls of Serve() that run return soon, later ones fail. To be
  // called before the server that calls Serve() is shut down, and that before the transport is
  // destroyed.
  virtual void StopReceiving() = 0;
  // The ports in use, e.g. "mlx5_0:1".
  virtual std::vector<std::string> ports() const = 0;
};

// NotFound: there is no device, or no active port; the agent goes on without this transport.
// InvalidArgument names a bad option.
absl::StatusOr<std::unique_ptr<VerbsTransport>> MakeVerbsTransport(const VerbsOptions& options);

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_VERBS_VERBS_H_
