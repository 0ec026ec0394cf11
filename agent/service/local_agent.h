// The gRPC service for the processes of this node.
#ifndef XFER_AGENT_SERVICE_LOCAL_AGENT_H_
#define XFER_AGENT_SERVICE_LOCAL_AGENT_H_

#include <string>

#include "agent/memory/rank_table.h"
#include "agent/service/coordinator_session.h"
#include "agent/service/rank_sessions.h"
#include "agent/service/registrar.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer {

// Thread-safe. RankSession() is asynchronous, so that a rank's stream takes no thread.
class LocalAgentService final
    : public v1::LocalAgent::WithCallbackMethod_RankSession<v1::LocalAgent::Service> {
 public:
  // `status` holds what does not change; pointers are borrowed.
  LocalAgentService(v1::AgentStatus status, RankTable* ranks, Registrar* registrar,
                    RankSessions* sessions, CoordinatorSession* coordinator)
      : status_(std::move(status)),
        ranks_(ranks),
        registrar_(registrar),
        sessions_(sessions),
        coordinator_(coordinator) {}

  grpc::Status RegisterRank(grpc::ServerContext* context,
                            grpc::ServerReader<v1::RegisterRankRequest>* reader,
                            v1::RegisterRankReply* reply) override;
  grpc::Status UpdateRank(grpc::ServerContext* context,
                          grpc::ServerReader<v1::RegisterRankRequest>* reader,
                          v1::RegisterRankReply* reply) override;
  grpc::Status UnregisterRank(grpc::ServerContext* context,
                              const v1::UnregisterRankRequest* request,
                              v1::UnregisterRankReply* reply) override;
  RankSessions::Reactor* RankSession(grpc::CallbackServerContext* context) override;
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::AgentStatus* reply) override;

 private:
  grpc::Status Register(grpc::ServerReader<v1::RegisterRankRequest>& reader, bool update,
                        v1::RegisterRankReply* reply);

  const v1::AgentStatus status_;
  RankTable* const ranks_;
  Registrar* const registrar_;
  RankSessions* const sessions_;
  CoordinatorSession* const coordinator_;
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_LOCAL_AGENT_H_
