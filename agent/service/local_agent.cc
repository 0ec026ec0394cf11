#include "agent/service/local_agent.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

struct Registration {
  v1::RankHeader header;
  std::vector<TensorPlacement> tensors;
};

absl::StatusOr<Registration> ReadRegistration(grpc::ServerReader<v1::RegisterRankRequest>& reader) {
  Registration out;
  v1::RegisterRankRequest request;
  bool first = true;
  while (reader.Read(&request)) {
    if (request.has_header() != first) {
      return absl::InvalidArgumentError(
          first ? "the first message of a registration must hold its header"
                : "a registration has one header, in its first message");
    }
    if (first) out.header = std::move(*request.mutable_header());
    first = false;
    for (const v1::TensorPlacement& tensor : request.tensors()) {
      if (out.tensors.size() == out.header.tensors()) {
        return absl::InvalidArgumentError(
            absl::StrCat("more tensors come than the header's ", out.header.tensors()));
      }
      XFER_ASSIGN_OR_RETURN(TensorPlacement placement, FromProto(tensor));
      out.tensors.push_back(std::move(placement));
    }
  }
  if (first) return absl::InvalidArgumentError("a registration without a message");
  if (out.tensors.size() != out.header.tensors()) {
    return absl::InvalidArgumentError(absl::StrCat("the registration was cut: ", out.tensors.size(),
                                                   " of ", out.header.tensors(), " tensors came"));
  }
  return out;
}

}  // namespace

grpc::Status LocalAgentService::Register(grpc::ServerReader<v1::RegisterRankRequest>& reader,
                                         bool update, v1::RegisterRankReply* reply) {
  absl::StatusOr<Registration> registration = ReadRegistration(reader);
  if (!registration.ok()) return ToGrpc(registration.status());
  absl::StatusOr<v1::RegisterRankReply> done =
      registrar_->Register(registration->header, std::move(registration->tensors), update);
  if (!done.ok()) {
    spdlog::warn("a registration with job {} was refused: {}", registration->header.job(),
                 done.status().ToString());
    return ToGrpc(done.status());
  }
  *reply = *std::move(done);
  return grpc::Status::OK;
}

grpc::Status LocalAgentService::RegisterRank(grpc::ServerContext*,
                                             grpc::ServerReader<v1::RegisterRankRequest>* reader,
                                             v1::RegisterRankReply* reply) {
  return Register(*reader, /*update=*/false, reply);
}

grpc::Status LocalAgentService::UpdateRank(grpc::ServerContext*,
                                           grpc::ServerReader<v1::RegisterRankRequest>* reader,
                                           v1::RegisterRankReply* reply) {
  return Register(*reader, /*update=*/true, reply);
}

grpc::Status LocalAgentService::UnregisterRank(grpc::ServerContext*,
                                               const v1::UnregisterRankRequest* request,
                                               v1::UnregisterRankReply*) {
  if (ranks_->Find(request->registration_id()) == nullptr) {
    return ToGrpc(absl::NotFoundError(
        absl::StrCat("registration ", request->registration_id(), " does not exist")));
  }
  registrar_->Remove(request->registration_id(), "it unregistered");
  return grpc::Status::OK;
}

RankSessions::Reactor* LocalAgentService::RankSession(grpc::CallbackServerContext*) {
  return sessions_->Open();
}

grpc::Status LocalAgentService::GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                                          v1::AgentStatus* reply) {
  *reply = status_;
  reply->set_connected(coordinator_->connected());
  uint64_t bytes = 0;
  const std::vector<RankPin> ranks = ranks_->All();
  for (const RankPin& rank : ranks) bytes += rank->region_bytes();
  reply->set_ranks(static_cast<int32_t>(ranks.size()));
  reply->set_registered_bytes(bytes);
  return grpc::Status::OK;
}

}  // namespace xfer
