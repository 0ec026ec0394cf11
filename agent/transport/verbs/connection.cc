#include "agent/transport/verbs/connection.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer::verbs {
namespace {

absl::StatusOr<std::vector<Port>> DecodePorts(const v1::VerbsHelloReply& reply) {
  std::vector<Port> ports;
  for (const v1::VerbsPort& in : reply.ports()) {
    Port port;
    port.device = in.device();
    port.number = static_cast<uint8_t>(in.number());
    port.state = IBV_PORT_ACTIVE;
    port.ethernet = in.ethernet();
    port.active_mtu = in.mtu();
    port.lid = static_cast<uint16_t>(in.lid());
    for (const v1::VerbsGid& entry : in.gids()) {
      if (entry.gid().size() != sizeof(ibv_gid) || entry.type() > 2) {
        return absl::InternalError("the peer described a GID that cannot be; do versions differ?");
      }
      Gid gid;
      gid.index = entry.index();
      gid.type = static_cast<GidType>(entry.type());
      std::memcpy(gid.gid.raw, entry.gid().data(), sizeof(ibv_gid));
      port.gids.push_back(gid);
    }
    ports.push_back(std::move(port));
  }
  return ports;
}

absl::StatusOr<uint32_t> RandomPsn() {
  uint32_t psn = 0;
  if (getrandom(&psn, sizeof(psn), 0) != sizeof(psn)) return absl::InternalError("getrandom");
  return psn & 0xffffff;
}

// What both ends' devices allow.
void FitToDevices(const Rails& rails, const Tuning& tuning, Connection& connection) {
  connection.requests = static_cast<uint32_t>(tuning.queue_requests);
  connection.pieces = static_cast<uint32_t>(tuning.gather_pieces);
  for (const Rails::Device& device : rails.devices()) {
    const ibv_device_attr& attributes = device.context.attributes();
    connection.requests =
        std::min(connection.requests, static_cast<uint32_t>(attributes.max_qp_wr));
    connection.pieces = std::min(connection.pieces, static_cast<uint32_t>(attributes.max_sge));
  }
}

// Creates a rail's queue pairs and describes them to the peer.
absl::Status OpenRail(const Rails& rails, const Port& local, const Port& remote,
                      const RailChoice& choice, const Tuning& tuning, Connection& connection,
                      std::vector<Path>& paths, v1::VerbsRail& request) {
  XFER_ASSIGN_OR_RETURN(const size_t port, rails.Find(local.device, local.number));
  const size_t device = rails.device_of(port);
  const Rails::Device& owner = rails.devices()[device];
  XFER_ASSIGN_OR_RETURN(CompletionChannel channel, CompletionChannel::Create(owner.context));
  const uint32_t entries = static_cast<uint32_t>(tuning.queue_pairs) * connection.requests;
  XFER_ASSIGN_OR_RETURN(CompletionQueue cq,
                        CompletionQueue::Create(owner.context, static_cast<int>(entries), channel));
  ConnectedRail rail{
      port,
      device,
      absl::StrCat(local.ToString(), " GID ", choice.gids.local.ToString(), " -> ",
                   remote.ToString(), " GID ", choice.gids.remote.ToString(), ", MTU ", choice.mtu),
      std::move(channel),
      std::move(cq),
      {}};
  request.set_device(remote.device);
  request.set_number(remote.number);
  request.set_gid_index(choice.gids.remote.index);
  request.set_gid(choice.gids.local.gid.raw, sizeof(ibv_gid));
  request.set_lid(local.lid);
  request.set_mtu(choice.mtu);
  Path path;
  path.port = local.number;
  path.global = local.ethernet || remote.lid == 0;
  path.gid_index = choice.gids.local.index;
  path.remote_gid = choice.gids.remote.gid;
  path.remote_lid = remote.lid;
  path.mtu = choice.mtu;
  path.traffic_class = static_cast<uint8_t>(tuning.traffic_class);
  path.service_level = static_cast<uint8_t>(tuning.service_level);
  path.ack_timeout = static_cast<uint8_t>(tuning.ack_timeout);
  path.retries = static_cast<uint8_t>(tuning.retries);
  for (uint64_t i = 0; i < tuning.queue_pairs; ++i) {
    QueuePair::Sizes sizes;
    sizes.send_requests = connection.requests;
    sizes.send_sges = connection.pieces;
    XFER_ASSIGN_OR_RETURN(QueuePair qp, QueuePair::Create(owner.pd, rail.cq, sizes));
    XFER_ASSIGN_OR_RETURN(path.local_psn, RandomPsn());
    v1::VerbsQueuePair& pair = *request.add_queue_pairs();
    pair.set_number(qp.number());
    pair.set_first_psn(path.local_psn);
    rail.pairs.push_back(std::move(qp));
    paths.push_back(path);
  }
  connection.rails.push_back(std::move(rail));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Port>> ActivePorts(const Rails& rails) {
  std::vector<Port> ports;
  for (size_t i = 0; i < rails.ports(); ++i) {
    if (!rails.usable(i)) continue;
    XFER_ASSIGN_OR_RETURN(Port port, rails.Query(i));
    if (port.active()) ports.push_back(std::move(port));
  }
  if (ports.empty()) {
    return absl::UnavailableError("no active RDMA port on this node; check the links (rdma link)");
  }
  return ports;
}

absl::Status FinishConnect(const v1::VerbsConnectReply& reply, std::vector<Path>& paths,
                           Connection& connection) {
  if (static_cast<size_t>(reply.queue_pairs_size()) != paths.size() || reply.lease_ms() <= 0) {
    return absl::InternalError(absl::StrCat("the peer made ", reply.queue_pairs_size(), " of ",
                                            paths.size(), " queue pairs; do versions differ?"));
  }
  size_t next = 0;
  for (ConnectedRail& rail : connection.rails) {
    for (QueuePair& qp : rail.pairs) {
      Path& path = paths[next];
      path.remote_qp = reply.queue_pairs(static_cast<int>(next)).number();
      path.remote_psn = reply.queue_pairs(static_cast<int>(next)).first_psn();
      ++next;
      XFER_RETURN_IF_ERROR(Annotate(qp.ToReceive(path, /*target=*/false), rail.name));
      XFER_RETURN_IF_ERROR(Annotate(qp.ToSend(path), rail.name));
    }
  }
  connection.session = reply.session();
  connection.lease = absl::Milliseconds(reply.lease_ms());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RailChoice>> ChooseRails(absl::Span<const Port> local,
                                                    absl::Span<const Port> remote) {
  std::vector<RailChoice> choices;
  absl::Status failure = absl::FailedPreconditionError("one of the nodes has no active RDMA port");
  const size_t rails = local.empty() || remote.empty() ? 0 : std::max(local.size(), remote.size());
  for (size_t i = 0; i < rails; ++i) {
    RailChoice choice;
    choice.local = i % local.size();
    choice.remote = i % remote.size();
    const Port& here = local[choice.local];
    const Port& there = remote[choice.remote];
    const std::string name = absl::StrCat("ports ", here.ToString(), " and ", there.ToString());
    if (here.ethernet != there.ethernet) {
      failure = absl::FailedPreconditionError(absl::StrCat(
          name, ": one is InfiniBand, the other Ethernet; name those of one network in `nics`"));
      continue;
    }
    const absl::StatusOr<GidPair> gids = ChooseGids(here.gids, there.gids);
    if (!gids.ok()) {
      failure = absl::FailedPreconditionError(absl::StrCat(name, ": ", gids.status().message()));
      continue;
    }
    choice.gids = *gids;
    choice.mtu = MtuBytes(MtuOfBytes(std::min(here.active_mtu, there.active_mtu)));
    choices.push_back(choice);
  }
  if (choices.empty()) return failure;
  return choices;
}

absl::StatusOr<Connection> ConnectTo(const PeerAddress& peer, const std::string& own_node,
                                     const Rails& rails, const Tuning& tuning,
                                     VerbsControl& control, absl::Time deadline) {
  v1::VerbsRequest hello;
  hello.mutable_hello()->set_node(own_node);
  hello.mutable_hello()->set_expected_incarnation(peer.incarnation);
  XFER_ASSIGN_OR_RETURN(const v1::VerbsReply hello_reply, control.Call(peer, hello, deadline));
  XFER_ASSIGN_OR_RETURN(const std::vector<Port> remote, DecodePorts(hello_reply.hello()));
  XFER_ASSIGN_OR_RETURN(const std::vector<Port> local, ActivePorts(rails));
  XFER_ASSIGN_OR_RETURN(const std::vector<RailChoice> choices, ChooseRails(local, remote));
  Connection connection;
  FitToDevices(rails, tuning, connection);
  v1::VerbsRequest request;
  v1::VerbsConnect& connect = *request.mutable_connect();
  connect.set_node(own_node);
  connect.set_expected_incarnation(peer.incarnation);
  connect.set_receive_requests(connection.requests);
  std::vector<Path> paths;
  for (const RailChoice& choice : choices) {
    XFER_RETURN_IF_ERROR(OpenRail(rails, local[choice.local], remote[choice.remote], choice, tuning,
                                  connection, paths, *connect.add_rails()));
    spdlog::debug("verbs: rail to node '{}': {}", peer.node, connection.rails.back().name);
  }
  XFER_ASSIGN_OR_RETURN(const v1::VerbsReply reply, control.Call(peer, request, deadline));
  XFER_RETURN_IF_ERROR(FinishConnect(reply.connect(), paths, connection));
  return connection;
}

}  // namespace xfer::verbs
