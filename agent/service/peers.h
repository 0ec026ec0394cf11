// Other agents: asking them who they are, and answering that.
#ifndef XFER_AGENT_SERVICE_PEERS_H_
#define XFER_AGENT_SERVICE_PEERS_H_

#include <string>
#include <utility>

#include "agent/exec/interfaces.h"
#include "agent/transport/verbs/verbs.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer {

class PeerClient final : public PeerIdentifier {
 public:
  // `node` is the own name, for the peer's log.
  explicit PeerClient(std::string node) : node_(std::move(node)) {}
  absl::StatusOr<PeerIdentity> Identify(const v1::Peer& peer, absl::Time deadline) override;

 private:
  const std::string node_;
};

class PeerAgentService final : public v1::PeerAgent::Service {
 public:
  // `verbs` is borrowed; null: this agent does not receive by it.
  PeerAgentService(v1::IdentifyReply self, VerbsTransport* verbs)
      : self_(std::move(self)), verbs_(verbs) {}
  grpc::Status Identify(grpc::ServerContext* context, const v1::IdentifyRequest* request,
                        v1::IdentifyReply* reply) override;
  grpc::Status Verbs(grpc::ServerContext* context, const v1::VerbsRequest* request,
                     v1::VerbsReply* reply) override;

 private:
  const v1::IdentifyReply self_;
  VerbsTransport* const verbs_;
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_PEERS_H_
