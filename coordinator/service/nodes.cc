#include "coordinator/service/coordinator_service.h"

namespace xfer {

grpc::Status CoordinatorService::ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                                           v1::ListNodesReply* reply) {
  const int64_t now = state_->options.clock->MonotonicNanos();
  const auto ranks = state_->registry.RanksByNode();
  for (const NodeView& node : state_->membership.List()) {
    v1::NodeInfo* info = reply->add_nodes();
    info->set_name(node.hello.name);
    info->set_state(node.state == NodeState::kLost ? v1::NODE_STATE_LOST : v1::NODE_STATE_ALIVE);
    info->set_incarnation(node.hello.incarnation);
    info->set_peer_address(node.hello.peer_address);
    info->set_data_address(node.hello.data_address);
    info->set_last_heartbeat_age_ms((now - node.last_heard_ns) / 1'000'000);
    info->set_clock_offset_ns(node.clock_offset_ns);
    info->set_version(node.hello.version);
    info->set_nics(node.hello.nics);
    if (auto it = ranks.find(node.hello.name); it != ranks.end()) {
      info->set_ranks(it->second.first);
      info->set_registered_bytes(it->second.second);
    }
  }
  return grpc::Status::OK;
}

}  // namespace xfer
