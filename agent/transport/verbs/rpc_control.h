// The verbs transport's control calls over gRPC.
#ifndef XFER_AGENT_TRANSPORT_VERBS_RPC_CONTROL_H_
#define XFER_AGENT_TRANSPORT_VERBS_RPC_CONTROL_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "agent/transport/verbs/control.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer::verbs {

// By the rpc PeerAgent.Verbs of the agent at PeerAddress::rpc_address. Thread-safe.
class RpcControl final : public VerbsControl {
 public:
  absl::StatusOr<v1::VerbsReply> Call(const PeerAddress& peer, const v1::VerbsRequest& request,
                                      absl::Time deadline) override;

 private:
  std::shared_ptr<v1::PeerAgent::Stub> StubOf(const PeerAddress& peer) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls come all the time while a sync runs, so channels are kept: one a node.
  struct Known {
    std::string rpc_address;
    std::shared_ptr<v1::PeerAgent::Stub> stub;
  };
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_RPC_CONTROL_H_
