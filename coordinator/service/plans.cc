#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan/planner.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "coordinator/service/coordinator_service.h"

namespace xfer {
namespace {
constexpr int32_t kMaxDescribed = 100'000;
}  // namespace

grpc::Status CoordinatorService::GetPlan(grpc::ServerContext*, const v1::GetPlanRequest* request,
                                         v1::GetPlanReply* reply) {
  if (request->max_transfers() < 0 || request->max_transfers() > kMaxDescribed) {
    return ToGrpc(absl::InvalidArgumentError(absl::StrCat(
        "max_transfers ", request->max_transfers(), " is not between 0 and ", kMaxDescribed)));
  }
  const std::vector<int32_t> engines(request->engines().begin(), request->engines().end());
  const absl::StatusOr<SyncInput> input = state_->registry.PlanInputOf(request->job(), engines);
  if (!input.ok()) return ToGrpc(input.status());
  const absl::StatusOr<PlanCache::Found> found = state_->plans.Get(*input);
  if (!found.ok()) return ToGrpc(found.status());
  const CachedPlan& plan = *found->plan;
  *reply->mutable_stats() = ToProto(plan.plan.stats, plan.plan.transfers.size());
  reply->set_text(Describe(plan.plan, *input->tensors, request->max_transfers()));
  reply->set_plan_id(plan.id);
  reply->set_planning_ns(found->cached ? 0 : plan.planning_ns);
  reply->set_cached(found->cached);
  return grpc::Status::OK;
}

}  // namespace xfer
