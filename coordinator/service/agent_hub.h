// The service that agents call; each RPC has a file of its own.
#ifndef XFER_COORDINATOR_SERVICE_AGENT_HUB_H_
#define XFER_COORDINATOR_SERVICE_AGENT_HUB_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "coordinator/service/state.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {

// Sessions last and are many: they use gRPC's callback API and no thread. The others are short.
// `state` is borrowed. Semantics and errors: coordinator.proto.
class AgentHubService final
    : public v1::AgentHub::WithCallbackMethod_Session<v1::AgentHub::Service> {
 public:
  explicit AgentHubService(CoordinatorState* state) : state_(state) {}

  // agent_hub.cc
  grpc::ServerBidiReactor<v1::AgentEvent, v1::AgentCommand>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::Status ReportTimings(grpc::ServerContext*, grpc::ServerReader<v1::TransferTimings>* reader,
                             v1::ReportTimingsReply*) override;
  // publish_manifest.cc. InvalidArgument: the stream has more or fewer pieces than its header says.
  grpc::Status PublishManifest(grpc::ServerContext*, grpc::ServerReader<v1::ManifestPart>* reader,
                               v1::PublishManifestReply* reply) override;
  // fetch_plan.cc. NotFound: the plan is not held any more, or has nothing to do with the node.
  grpc::Status FetchPlan(grpc::ServerContext*, const v1::FetchPlanRequest* request,
                         grpc::ServerWriter<v1::PlanPart>* writer) override;

 private:
  CoordinatorState* const state_;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SERVICE_AGENT_HUB_H_
