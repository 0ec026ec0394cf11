#include "common/rpc/status.h"
#include "coordinator/service/coordinator_service.h"

namespace xfer {

grpc::Status CoordinatorService::ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                                            v1::ListModelsReply* reply) {
  for (const ModelSpec& spec : Presets()) {
    v1::Model* model = reply->add_models();
    model->set_name(spec.name);
    model->set_spec_json(ToJson(spec));
  }
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                                          v1::Model* reply) {
  const absl::StatusOr<ModelSpec> spec = FindPreset(request->name());
  if (!spec.ok()) return ToGrpc(spec.status());
  reply->set_name(spec->name);
  reply->set_spec_json(ToJson(*spec));
  return grpc::Status::OK;
}

}  // namespace xfer
