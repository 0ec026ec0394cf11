#include "client/rank_client.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/fd_sender.h"
#include "client/rank_session.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer {
namespace {

// Keeps a message of a registration at some tens of KiB.
constexpr size_t kTensorsPerMessage = 256;

// Sends the descriptors and says in the header where each region lies.
absl::Status SendRegions(FdSender& sender, const RankOptions& options, absl::Time deadline,
                         v1::RankHeader& header) {
  for (const RegionSource& source : options.regions) {
    XFER_ASSIGN_OR_RETURN(std::string token, sender.Send(source.fd, deadline));
    v1::Region* region = header.add_regions();
    region->set_kind(v1::MEMORY_KIND_MEMFD);
    region->set_fd_token(token);
    region->set_offset_bytes(source.offset);
    region->set_bytes(source.bytes);
  }
  return absl::OkStatus();
}

class RankClientImpl final : public RankClient {
 public:
  RankClientImpl(std::string socket, std::shared_ptr<grpc::Channel> channel)
      : socket_(std::move(socket)), stub_(v1::LocalAgent::NewStub(channel)) {}

  absl::StatusOr<std::unique_ptr<RegisteredRank>> Register(const RankOptions& options) override {
    auto session = RegisterAndAttach(options);
    if (!session.ok()) {
      return Annotate(session.status(),
                      absl::StrCat("registering ", options.id.ToString(), " of job ", options.job,
                                   " with the agent at ", socket_));
    }
    return session;
  }

 private:
  absl::StatusOr<std::unique_ptr<RegisteredRank>> RegisterAndAttach(const RankOptions& options) {
    const absl::Time deadline = absl::Now() + options.deadline;
    // Stays open until the registration is over, so that the agent need not keep tokens beyond it.
    XFER_ASSIGN_OR_RETURN(FdSender sender, FdSender::Connect(socket_));
    v1::RegisterRankRequest first;
    v1::RankHeader& header = *first.mutable_header();
    XFER_RETURN_IF_ERROR(SendRegions(sender, options, deadline, header));
    header.set_job(options.job);
    *header.mutable_id() = ToProto(options.id);
    header.set_world(options.world);
    header.set_pid(getpid());
    header.set_device(options.device);
    header.set_ready_version(options.ready_version);
    header.set_tensors(options.tensors.size());
    // The agent's own deadline comes first, for it knows what it was waiting for.
    header.set_deadline_ms(
        std::max<int64_t>(absl::ToInt64Milliseconds((deadline - absl::Now()) * 0.9), 1));

    XFER_ASSIGN_OR_RETURN(uint64_t registration_id, SendTensors(first, options, deadline));
    XFER_ASSIGN_OR_RETURN(std::unique_ptr<RankSession> session,
                          RankSession::Open(stub_, options, registration_id, deadline));
    return std::unique_ptr<RegisteredRank>(std::move(session));
  }

  // Streams the registration; returns its id.
  absl::StatusOr<uint64_t> SendTensors(const v1::RegisterRankRequest& first,
                                       const RankOptions& options, absl::Time deadline) {
    grpc::ClientContext context;
    SetDeadline(context, deadline - absl::Now());
    v1::RegisterRankReply reply;
    auto writer = stub_->RegisterRank(&context, &reply);
    bool open = writer->Write(first);
    for (size_t i = 0; open && i < options.tensors.size(); i += kTensorsPerMessage) {
      v1::RegisterRankRequest part;
      const size_t end = std::min(i + kTensorsPerMessage, options.tensors.size());
      for (size_t j = i; j < end; ++j) *part.add_tensors() = ToProto(options.tensors[j]);
      open = writer->Write(part);  // false: refused meanwhile; Finish() says why
    }
    writer->WritesDone();
    XFER_RETURN_IF_ERROR(FromGrpc(writer->Finish()));
    return reply.registration_id();
  }

  const std::string socket_;
  const std::shared_ptr<v1::LocalAgent::StubInterface> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankClient>> RankClient::Connect(const std::string& socket,
                                                                absl::Duration timeout) {
  const std::string target = absl::StrCat("unix:", socket);
  std::shared_ptr<grpc::Channel> channel = MakeChannel(target);
  XFER_RETURN_IF_ERROR(WaitForChannel(*channel, "the agent", socket, timeout));
  return std::make_unique<RankClientImpl>(socket, std::move(channel));
}

}  // namespace xfer
