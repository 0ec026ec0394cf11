#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "coordinator/service/agent_hub.h"

namespace xfer {
namespace {

// A part is written once it has grown to this.
constexpr size_t kPartBytes = 1 << 20;

v1::PlanHeader HeaderOf(const CachedPlan& plan, const std::vector<TransferId>& transfers) {
  v1::PlanHeader header;
  header.set_plan_id(plan.id);
  header.set_generation(plan.plan.generation);
  header.set_job(plan.job);
  for (size_t i = 0; i < plan.plan.ranks.size(); ++i) {
    const PlanRank& rank = plan.plan.ranks[i];
    v1::PlanRank* out = header.add_ranks();
    *out->mutable_id() = ToProto(rank.id);
    out->set_node(rank.node);
    out->set_nic(rank.nic);
    out->set_registration_id(plan.registration_ids[i]);
  }
  header.set_transfers(static_cast<uint32_t>(transfers.size()));
  // By tensor index, so all have a place; the names of those that the node has nothing of stay
  // empty.
  for (int32_t t = 0; t < plan.names->tensors->size(); ++t) header.add_tensor_names();
  for (TransferId id : transfers) {
    const TensorId tensor = plan.plan.transfers[id].tensor;
    header.set_tensor_names(tensor, (*plan.names->tensors)[tensor].name);
  }
  return header;
}

}  // namespace

grpc::Status AgentHubService::FetchPlan(grpc::ServerContext*, const v1::FetchPlanRequest* request,
                                        grpc::ServerWriter<v1::PlanPart>* writer) {
  const absl::StatusOr<std::shared_ptr<const CachedPlan>> found =
      state_->plans.Find(request->plan_id());
  if (!found.ok()) return ToGrpc(found.status());
  const CachedPlan& plan = **found;
  if (!plan.nodes.contains(request->node())) {
    return ToGrpc(absl::NotFoundError(absl::StrCat("plan ", plan.id, " of job ", plan.job,
                                                   " has no rank on node ", request->node())));
  }
  static const std::vector<TransferId> kNone;
  auto it = plan.transfers_by_node.find(request->node());
  const std::vector<TransferId>& transfers =
      it == plan.transfers_by_node.end() ? kNone : it->second;
  v1::PlanPart part;
  *part.mutable_header() = HeaderOf(plan, transfers);
  if (!writer->Write(part)) return grpc::Status::OK;  // the caller has gone
  part.Clear();
  size_t bytes = 0;
  for (TransferId id : transfers) {
    v1::Transfer* transfer = part.add_transfers();
    *transfer = ToProto(plan.plan.transfers[id]);
    bytes += transfer->ByteSizeLong();
    if (bytes < kPartBytes) continue;
    if (!writer->Write(part)) return grpc::Status::OK;
    part.Clear();
    bytes = 0;
  }
  if (part.transfers_size() > 0) writer->Write(part);
  return grpc::Status::OK;
}

}  // namespace xfer
