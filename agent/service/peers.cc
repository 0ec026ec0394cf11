#include "agent/service/peers.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace xfer {

absl::StatusOr<PeerIdentity> PeerClient::Identify(const v1::Peer& peer, absl::Time deadline) {
  // Asked once for a connection that is then kept; the channel need not be.
  const auto stub = v1::PeerAgent::NewStub(MakeChannel(peer.peer_address()));
  grpc::ClientContext context;
  SetDeadline(context, deadline - absl::Now());
  v1::IdentifyRequest request;
  request.set_caller(node_);
  v1::IdentifyReply reply;
  XFER_RETURN_IF_ERROR(
      Annotate(FromGrpc(stub->Identify(&context, request, &reply)),
               absl::StrCat("agent of node ", peer.node(), " at ", peer.peer_address())));
  return PeerIdentity{reply.node(),
                      reply.incarnation(),
                      reply.data_address(),
                      {reply.transports().begin(), reply.transports().end()}};
}

grpc::Status PeerAgentService::Verbs(grpc::ServerContext*, const v1::VerbsRequest* request,
                                     v1::VerbsReply* reply) {
  if (verbs_ == nullptr) {
    return ToGrpc(absl::FailedPreconditionError(
        absl::StrCat("node ", self_.node(), " does not receive by verbs")));
  }
  absl::StatusOr<v1::VerbsReply> answer = verbs_->Serve(*request);
  if (!answer.ok()) return ToGrpc(answer.status());
  *reply = *std::move(answer);
  return grpc::Status::OK;
}

grpc::Status PeerAgentService::Identify(grpc::ServerContext*, const v1::IdentifyRequest* request,
                                        v1::IdentifyReply* reply) {
  spdlog::debug("node {} asks who is here", request->caller());
  *reply = self_;
  return grpc::Status::OK;
}

}  // namespace xfer
