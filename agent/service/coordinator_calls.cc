#include "agent/service/coordinator_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"

namespace xfer {

class CoordinatorCalls::Call {
 public:
  Call(CoordinatorCalls& client, absl::Time deadline) : client_(client) {
    SetDeadline(context, deadline - absl::Now());
    absl::MutexLock lock(&client_.mu_);
    if (client_.cancelled_) context.TryCancel();
    client_.running_.insert(&context);
  }
  ~Call() {
    absl::MutexLock lock(&client_.mu_);
    client_.running_.erase(&context);
  }
  grpc::ClientContext context;

 private:
  CoordinatorCalls& client_;
};

void CoordinatorCalls::CancelAll() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

CoordinatorCalls::CoordinatorCalls(std::string address, std::string node, uint64_t incarnation,
                                   const std::shared_ptr<grpc::Channel>& channel)
    : address_(std::move(address)),
      node_(std::move(node)),
      incarnation_(incarnation),
      coordinator_(v1::Coordinator::NewStub(channel)),
      hub_(v1::AgentHub::NewStub(channel)) {}

absl::Status CoordinatorCalls::Name(const absl::Status& status) const {
  // Its own words stand alone; that it could not be reached needs to say where.
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    return Annotate(status, absl::StrCat("coordinator at ", address_));
  }
  return status;
}

absl::StatusOr<v1::Job> CoordinatorCalls::GetJob(const std::string& name, absl::Time deadline) {
  Call call(*this, deadline);
  grpc::ClientContext& context = call.context;
  context.set_wait_for_ready(true);
  v1::GetJobRequest request;
  request.set_name(name);
  v1::Job job;
  XFER_RETURN_IF_ERROR(Name(FromGrpc(coordinator_->GetJob(&context, request, &job))));
  return job;
}

absl::StatusOr<uint64_t> CoordinatorCalls::Publish(const LocalRank& rank, absl::Time deadline) {
  Call call(*this, deadline);
  grpc::ClientContext& context = call.context;
  context.set_wait_for_ready(true);
  v1::PublishManifestReply reply;
  const auto writer = hub_->PublishManifest(&context, &reply);
  const LocalRankInfo& info = rank.info();
  v1::ManifestPart first;
  v1::ManifestHeader& header = *first.mutable_header();
  header.set_job(info.job);
  *header.mutable_id() = ToProto(info.id);
  header.set_node(node_);
  header.set_incarnation(incarnation_);
  header.set_registration_id(rank.registration_id());
  header.set_pid(info.pid);
  header.set_nic(info.nic);
  for (size_t i = 0; i < rank.regions(); ++i) header.add_region_bytes(rank.region(i).bytes);
  header.set_ready_version(rank.ready_version());
  header.set_pieces(info.pieces);
  bool open = writer->Write(first);
  for (size_t i = 0; open && i < info.manifest.size(); ++i) {
    v1::ManifestPart part;
    if (!part.ParseFromString(info.manifest[i])) {
      context.TryCancel();
      return absl::InternalError(
          absl::StrCat("the kept manifest of ", info.id.ToString(), " cannot be read back"));
    }
    open = writer->Write(part);  // false: refused meanwhile; Finish() says why
  }
  writer->WritesDone();
  XFER_RETURN_IF_ERROR(Name(FromGrpc(writer->Finish())));
  return reply.generation();
}

absl::Status CoordinatorCalls::FetchPlan(
    uint64_t plan_id, absl::Time deadline,
    absl::FunctionRef<absl::Status(const v1::PlanPart&)> part) {
  Call call(*this, deadline);
  grpc::ClientContext& context = call.context;
  v1::FetchPlanRequest request;
  request.set_plan_id(plan_id);
  request.set_node(node_);
  const auto reader = hub_->FetchPlan(&context, request);
  absl::Status bad;
  v1::PlanPart message;
  while (bad.ok() && reader->Read(&message)) bad = part(message);
  if (!bad.ok()) context.TryCancel();
  const absl::Status status = FromGrpc(reader->Finish());
  return bad.ok() ? Name(status) : bad;
}

absl::Status CoordinatorCalls::ReportTimings(const std::vector<v1::TransferTimings>& batches,
                                             absl::Time deadline) {
  Call call(*this, deadline);
  grpc::ClientContext& context = call.context;
  v1::ReportTimingsReply reply;
  const auto writer = hub_->ReportTimings(&context, &reply);
  for (const v1::TransferTimings& batch : batches) {
    if (!writer->Write(batch)) break;
  }
  writer->WritesDone();
  return Name(FromGrpc(writer->Finish()));
}

}  // namespace xfer
