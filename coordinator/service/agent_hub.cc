#include "coordinator/service/agent_hub.h"

#include "common/rpc/status.h"
#include "coordinator/service/agent_session.h"

namespace xfer {

grpc::ServerBidiReactor<v1::AgentEvent, v1::AgentCommand>* AgentHubService::Session(
    grpc::CallbackServerContext* context) {
  return AgentSession::Start(state_, context);
}

grpc::Status AgentHubService::ReportTimings(grpc::ServerContext*,
                                            grpc::ServerReader<v1::TransferTimings>* reader,
                                            v1::ReportTimingsReply*) {
  v1::TransferTimings timings;
  while (reader->Read(&timings)) {
    if (absl::Status status = state_->syncs.AddTimings(timings); !status.ok()) {
      return ToGrpc(status);
    }
  }
  return grpc::Status::OK;
}

}  // namespace xfer
