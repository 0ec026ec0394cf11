#include <utility>

#include "common/rpc/status.h"
#include "coordinator/service/coordinator_service.h"

namespace xfer {

grpc::Status CoordinatorService::ListRanks(grpc::ServerContext*,
                                           const v1::ListRanksRequest* request,
                                           v1::ListRanksReply* reply) {
  absl::StatusOr<std::vector<v1::RankInfo>> ranks = state_->registry.ListRanks(request->job());
  if (!ranks.ok()) return ToGrpc(ranks.status());
  for (v1::RankInfo& rank : *ranks) *reply->add_ranks() = std::move(rank);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::ListEngines(grpc::ServerContext*,
                                             const v1::ListEnginesRequest* request,
                                             v1::ListEnginesReply* reply) {
  absl::StatusOr<std::vector<v1::EngineInfo>> engines =
      state_->registry.ListEngines(request->job());
  if (!engines.ok()) return ToGrpc(engines.status());
  for (v1::EngineInfo& engine : *engines) *reply->add_engines() = std::move(engine);
  return grpc::Status::OK;
}

}  // namespace xfer
