#include <utility>

#include "common/rpc/status.h"
#include "coordinator/service/coordinator_service.h"

namespace xfer {
namespace {

grpc::Status Answer(absl::StatusOr<v1::Model> model, v1::Model* reply) {
  if (!model.ok()) return ToGrpc(model.status());
  *reply = *std::move(model);
  return grpc::Status::OK;
}

}  // namespace

grpc::Status CoordinatorService::ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                                            v1::ListModelsReply* reply) {
  for (v1::Model& model : state_->models.List()) *reply->add_models() = std::move(model);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                                          v1::Model* reply) {
  return Answer(state_->models.Get(request->name()), reply);
}

grpc::Status CoordinatorService::AddModel(grpc::ServerContext*, const v1::AddModelRequest* request,
                                          v1::Model* reply) {
  return Answer(state_->models.Add(request->spec_json(), request->replace()), reply);
}

}  // namespace xfer
