// The service that operators and programs call; each family of RPCs has a file of its own.
#ifndef XFER_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
#define XFER_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "coordinator/service/state.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {

// Watches use gRPC's callback API, so that any number of them costs no thread; the rest answers at
// once.
using CoordinatorServiceBase = v1::Coordinator::WithCallbackMethod_WatchJob<
    v1::Coordinator::WithCallbackMethod_WatchSync<v1::Coordinator::Service>>;

// `state` is borrowed. Semantics and errors: coordinator.proto.
class CoordinatorService final : public CoordinatorServiceBase {
 public:
  explicit CoordinatorService(CoordinatorState* state) : state_(state) {}

  // models.cc
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsReply* reply) override;
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::Model* reply) override;
  grpc::Status AddModel(grpc::ServerContext*, const v1::AddModelRequest* request,
                        v1::Model* reply) override;
  // jobs.cc
  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* request,
                         v1::Job* reply) override;
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* reply) override;
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsReply* reply) override;
  grpc::Status FinishJob(grpc::ServerContext*, const v1::FinishJobRequest* request,
                         v1::Job* reply) override;
  grpc::ServerWriteReactor<v1::JobState>* WatchJob(grpc::CallbackServerContext*,
                                                   const v1::WatchJobRequest* request) override;
  // nodes.cc
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesReply* reply) override;
  // ranks.cc
  grpc::Status ListRanks(grpc::ServerContext*, const v1::ListRanksRequest* request,
                         v1::ListRanksReply* reply) override;
  grpc::Status ListEngines(grpc::ServerContext*, const v1::ListEnginesRequest* request,
                           v1::ListEnginesReply* reply) override;
  // syncs.cc
  grpc::Status TriggerSync(grpc::ServerContext*, const v1::TriggerSyncRequest* request,
                           v1::TriggerSyncReply* reply) override;
  grpc::Status GetSync(grpc::ServerContext*, const v1::GetSyncRequest* request,
                       v1::Sync* reply) override;
  grpc::Status ListSyncs(grpc::ServerContext*, const v1::ListSyncsRequest* request,
                         v1::ListSyncsReply* reply) override;
  grpc::Status CancelSync(grpc::ServerContext* context, const v1::CancelSyncRequest* request,
                          v1::Sync* reply) override;
  grpc::ServerWriteReactor<v1::Sync>* WatchSync(grpc::CallbackServerContext*,
                                                const v1::WatchSyncRequest* request) override;
  // timings.cc
  grpc::Status GetTimings(grpc::ServerContext*, const v1::GetTimingsRequest* request,
                          grpc::ServerWriter<v1::TimingsPart>* writer) override;
  // plans.cc
  grpc::Status GetPlan(grpc::ServerContext*, const v1::GetPlanRequest* request,
                       v1::GetPlanReply* reply) override;

 private:
  CoordinatorState* const state_;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
