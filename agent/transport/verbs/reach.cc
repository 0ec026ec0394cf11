#include "agent/transport/verbs/reach.h"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/transport/verbs/connection.h"
#include "agent/transport/verbs/rails.h"
#include "agent/transport/verbs/rpc_control.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace xfer::verbs {
namespace {

constexpr char kSelf[] = "xferctl-doctor";

absl::StatusOr<v1::IdentifyReply> Identify(const std::string& address, absl::Time deadline) {
  const auto stub = v1::PeerAgent::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  SetDeadline(context, deadline - absl::Now());
  v1::IdentifyRequest request;
  request.set_caller(kSelf);
  v1::IdentifyReply reply;
  XFER_RETURN_IF_ERROR(Annotate(
      FromGrpc(stub->Identify(&context, request, &reply)),
      absl::StrCat("no agent answers at ", address, " (its --listen address; xferctl nodes)")));
  return reply;
}

// Of no bytes, so no address or key is looked at; with immediate data, so the other end's device
// takes a receive request for it.
absl::Status WriteNothing(ConnectedRail& rail, absl::Time deadline) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(1);
  ibv_send_wr* bad = nullptr;
  if (const int error = rail.pairs.front().PostSend(&request, &bad); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("ibv_post_send: ", std::generic_category().message(error)));
  }
  std::array<ibv_wc, 1> completion;
  while (true) {
    XFER_RETURN_IF_ERROR(rail.cq.Arm());
    XFER_ASSIGN_OR_RETURN(const auto done, rail.cq.Poll(absl::MakeSpan(completion)));
    if (!done.empty()) break;
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0) {
      return absl::DeadlineExceededError("an empty write was neither acknowledged nor given up");
    }
    pollfd event{rail.channel.fd(), POLLIN, 0};
    if (poll(&event, 1, static_cast<int>(left)) > 0) rail.cq.TakeEvents();
  }
  if (completion[0].status == IBV_WC_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("an empty write failed: ", ibv_wc_status_str(completion[0].status),
                   "; do routes and firewalls let UDP port 4791 (RoCE) through in both directions, "
                   "and is the MTU as large on every hop?"));
}

}  // namespace

absl::StatusOr<PeerReach> ProbePeer(const std::string& address,
                                    const std::vector<std::string>& nics, absl::Time deadline) {
  XFER_ASSIGN_OR_RETURN(const v1::IdentifyReply identity, Identify(address, deadline));
  PeerReach reach;
  reach.node = identity.node();
  reach.transports.assign(identity.transports().begin(), identity.transports().end());
  if (std::find(reach.transports.begin(), reach.transports.end(), "verbs") ==
      reach.transports.end()) {
    return reach;
  }
  const PeerAddress peer{identity.node(), identity.incarnation(), identity.data_address(), address};
  XFER_ASSIGN_OR_RETURN(const std::shared_ptr<Rails> rails, Rails::Open(nics));
  RpcControl control;
  XFER_ASSIGN_OR_RETURN(Connection connection,
                        ConnectTo(peer, kSelf, *rails, Tuning(), control, deadline));
  for (ConnectedRail& rail : connection.rails) {
    const absl::Time start = absl::Now();
    const absl::Status status = WriteNothing(rail, deadline);
    reach.rails.push_back({rail.name, status, absl::Now() - start});
  }
  v1::VerbsRequest close;
  close.set_session(connection.session);
  close.mutable_close();
  // The peer ends a silent session by itself, so how this ends does not matter.
  (void)control.Call(peer, close, deadline);
  return reach;
}

}  // namespace xfer::verbs
