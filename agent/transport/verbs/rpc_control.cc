#include "agent/transport/verbs/rpc_control.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace xfer::verbs {

std::shared_ptr<v1::PeerAgent::Stub> RpcControl::StubOf(const PeerAddress& peer) {
  absl::MutexLock lock(&mu_);
  Known& known = known_[peer.node];
  if (known.stub == nullptr || known.rpc_address != peer.rpc_address) {
    known = {peer.rpc_address, v1::PeerAgent::NewStub(MakeChannel(peer.rpc_address))};
  }
  return known.stub;
}

absl::StatusOr<v1::VerbsReply> RpcControl::Call(const PeerAddress& peer,
                                                const v1::VerbsRequest& request,
                                                absl::Time deadline) {
  const std::shared_ptr<v1::PeerAgent::Stub> stub = StubOf(peer);
  grpc::ClientContext context;
  SetDeadline(context, deadline - absl::Now());
  v1::VerbsReply reply;
  XFER_RETURN_IF_ERROR(Annotate(FromGrpc(stub->Verbs(&context, request, &reply)),
                                absl::StrCat("agent at ", peer.rpc_address)));
  return reply;
}

}  // namespace xfer::verbs
