#include "client/coordinator_client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {
namespace {

constexpr absl::string_view kUnreachablePayload = "xfer/unreachable";

absl::Status Unreachable(absl::Status status) {
  status.SetPayload(kUnreachablePayload, absl::Cord("1"));
  return status;
}

}  // namespace

// A context that a CallCanceller knows for as long as it lives.
class ScopedCall {
 public:
  ScopedCall(CallCanceller* canceller, absl::Time deadline) : canceller_(canceller) {
    SetDeadline(context, deadline - absl::Now());
    if (canceller_ == nullptr) return;
    absl::MutexLock lock(&canceller_->mu_);
    canceller_->running_.push_back(&context);
    if (!canceller_->reason_.ok()) context.TryCancel();
  }
  ~ScopedCall() {
    if (canceller_ == nullptr) return;
    absl::MutexLock lock(&canceller_->mu_);
    std::erase(canceller_->running_, &context);
  }
  ScopedCall(const ScopedCall&) = delete;
  ScopedCall& operator=(const ScopedCall&) = delete;

  grpc::ClientContext context;

 private:
  CallCanceller* const canceller_;
};

void CallCanceller::Cancel(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (!reason_.ok()) return;
  reason_ = reason;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

absl::Status CallCanceller::status() const {
  absl::MutexLock lock(&mu_);
  return reason_;
}

bool CallCanceller::WaitUntil(absl::Time deadline) const {
  absl::MutexLock lock(&mu_);
  const auto cancelled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !reason_.ok(); };
  return mu_.AwaitWithDeadline(absl::Condition(&cancelled), deadline);
}

bool IsUnreachable(const absl::Status& status) {
  return status.GetPayload(kUnreachablePayload).has_value();
}

namespace {

class CoordinatorClientImpl final : public CoordinatorClient {
 public:
  CoordinatorClientImpl(std::string address, std::shared_ptr<grpc::Channel> channel,
                        CallCanceller* canceller)
      : address_(std::move(address)),
        stub_(v1::Coordinator::NewStub(channel)),
        canceller_(canceller) {}

  const std::string& address() const override { return address_; }

  absl::StatusOr<v1::ListModelsReply> ListModels() override {
    return Call(&v1::Coordinator::StubInterface::ListModels, v1::ListModelsRequest());
  }
  absl::StatusOr<v1::Model> GetModel(const std::string& name) override {
    return Call(&v1::Coordinator::StubInterface::GetModel, Named<v1::GetModelRequest>(name));
  }
  absl::StatusOr<v1::Model> AddModel(const std::string& spec_json, bool replace) override {
    v1::AddModelRequest request;
    request.set_spec_json(spec_json);
    request.set_replace(replace);
    return Call(&v1::Coordinator::StubInterface::AddModel, request);
  }
  absl::StatusOr<v1::Job> CreateJob(const std::string& name,
                                    const std::string& spec_json) override {
    auto request = Named<v1::CreateJobRequest>(name);
    request.set_spec_json(spec_json);
    return Call(&v1::Coordinator::StubInterface::CreateJob, request);
  }
  absl::StatusOr<v1::Job> GetJob(const std::string& name) override {
    return Call(&v1::Coordinator::StubInterface::GetJob, Named<v1::GetJobRequest>(name));
  }
  absl::StatusOr<v1::ListJobsReply> ListJobs() override {
    return Call(&v1::Coordinator::StubInterface::ListJobs, v1::ListJobsRequest());
  }
  absl::StatusOr<v1::Job> FinishJob(const std::string& name, const absl::Status& outcome) override {
    auto request = Named<v1::FinishJobRequest>(name);
    *request.mutable_outcome() = ToOutcome(outcome);
    return Call(&v1::Coordinator::StubInterface::FinishJob, request);
  }
  absl::StatusOr<v1::ListNodesReply> ListNodes() override {
    return Call(&v1::Coordinator::StubInterface::ListNodes, v1::ListNodesRequest());
  }
  absl::StatusOr<v1::ListEnginesReply> ListEngines(const std::string& job) override {
    return Call(&v1::Coordinator::StubInterface::ListEngines, OfJob<v1::ListEnginesRequest>(job));
  }
  absl::StatusOr<v1::ListRanksReply> ListRanks(const std::string& job) override {
    return Call(&v1::Coordinator::StubInterface::ListRanks, OfJob<v1::ListRanksRequest>(job));
  }
  absl::StatusOr<uint64_t> TriggerSync(const v1::TriggerSyncRequest& request) override {
    XFER_ASSIGN_OR_RETURN(v1::TriggerSyncReply reply,
                          Call(&v1::Coordinator::StubInterface::TriggerSync, request));
    return reply.sync_id();
  }
  absl::StatusOr<v1::Sync> GetSync(uint64_t sync_id) override {
    v1::GetSyncRequest request;
    request.set_sync_id(sync_id);
    return Call(&v1::Coordinator::StubInterface::GetSync, request);
  }
  absl::StatusOr<v1::ListSyncsReply> ListSyncs(const std::string& job, int32_t limit) override {
    auto request = OfJob<v1::ListSyncsRequest>(job);
    request.set_limit(limit);
    return Call(&v1::Coordinator::StubInterface::ListSyncs, request);
  }
  absl::StatusOr<v1::Sync> CancelSync(uint64_t sync_id) override {
    v1::CancelSyncRequest request;
    request.set_sync_id(sync_id);
    return Call(&v1::Coordinator::StubInterface::CancelSync, request);
  }
  absl::StatusOr<v1::GetPlanReply> GetPlan(const v1::GetPlanRequest& request) override {
    return Call(&v1::Coordinator::StubInterface::GetPlan, request);
  }

  absl::Status WatchJob(const std::string& name, absl::Time deadline,
                        absl::FunctionRef<bool(const v1::JobState&)> fn) override {
    ScopedCall call(canceller_, deadline);
    auto reader = stub_->WatchJob(&call.context, Named<v1::WatchJobRequest>(name));
    v1::JobState state;
    bool enough = false;
    while (!enough && reader->Read(&state)) enough = !fn(state);
    if (enough) call.context.TryCancel();
    const grpc::Status status = reader->Finish();
    if (enough) return absl::OkStatus();
    return StreamStatus(status, absl::StrCat("job ", name, " did not get that far in time"));
  }

  absl::StatusOr<v1::Sync> WatchSync(uint64_t sync_id, absl::Time deadline,
                                     absl::FunctionRef<void(const v1::Sync&)> fn) override {
    ScopedCall call(canceller_, deadline);
    v1::WatchSyncRequest request;
    request.set_sync_id(sync_id);
    auto reader = stub_->WatchSync(&call.context, request);
    v1::Sync sync;
    bool any = false;
    while (reader->Read(&sync)) {
      any = true;
      fn(sync);
    }
    XFER_RETURN_IF_ERROR(
        StreamStatus(reader->Finish(), absl::StrCat("sync ", sync_id, " did not end in time")));
    if (!any)
      return absl::InternalError(absl::StrCat("the coordinator told nothing of sync ", sync_id));
    return sync;
  }

  absl::Status GetTimings(uint64_t sync_id, bool transfers,
                          absl::FunctionRef<void(const v1::TimingsPart&)> fn) override {
    ScopedCall call(canceller_, absl::Now() + kCallTimeout * 3);
    v1::GetTimingsRequest request;
    request.set_sync_id(sync_id);
    request.set_transfers(transfers);
    auto reader = stub_->GetTimings(&call.context, request);
    v1::TimingsPart part;
    while (reader->Read(&part)) fn(part);
    return StreamStatus(reader->Finish(),
                        absl::StrCat("the timings of sync ", sync_id, " did not come in time"));
  }

 private:
  template <typename Request>
  static Request Named(const std::string& name) {
    Request request;
    request.set_name(name);
    return request;
  }
  template <typename Request>
  static Request OfJob(const std::string& job) {
    Request request;
    request.set_job(job);
    return request;
  }

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Coordinator::StubInterface::*method)(
                                 grpc::ClientContext*, const Request&, Reply*),
                             const Request& request) {
    ScopedCall call(canceller_, absl::Now() + kCallTimeout);
    Reply reply;
    const grpc::Status status = (stub_.get()->*method)(&call.context, request, &reply);
    if (status.ok()) return reply;
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return Unreachable(absl::DeadlineExceededError(
          absl::StrCat("the coordinator at ", address_, " did not answer within ",
                       absl::FormatDuration(kCallTimeout))));
    }
    return StreamStatus(status, "");
  }

  // What a call's end means to the caller.
  absl::Status StreamStatus(const grpc::Status& status, const std::string& late) const {
    if (status.ok()) return absl::OkStatus();
    if (canceller_ != nullptr && !canceller_->status().ok()) return canceller_->status();
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return Unreachable(absl::UnavailableError(
          absl::StrCat("no coordinator at ", address_, ": ", status.error_message(),
                       ": is xfer-coordinator running there?")));
    }
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      return absl::DeadlineExceededError(late);
    return FromGrpc(status);
  }

  const std::string address_;
  const std::unique_ptr<v1::Coordinator::StubInterface> stub_;
  CallCanceller* const canceller_;
};

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator's address is \"", address, "\"; it must be HOST:PORT"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Connect(
    const std::string& address, absl::Duration timeout, CallCanceller* canceller) {
  XFER_RETURN_IF_ERROR(CheckAddress(address));
  std::shared_ptr<grpc::Channel> channel = MakeChannel(address);
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    if (canceller != nullptr) XFER_RETURN_IF_ERROR(canceller->status());
    const absl::Duration left = deadline - absl::Now();
    // In short turns, so that a cancellation is seen.
    if (WaitForChannel(*channel, "the coordinator", address,
                       std::min(left, absl::Milliseconds(100)))
            .ok()) {
      return std::make_unique<CoordinatorClientImpl>(address, std::move(channel), canceller);
    }
    if (left <= absl::ZeroDuration()) {
      return Unreachable(absl::UnavailableError(
          absl::StrCat("no coordinator at ", address, " answered within ",
                       absl::FormatDuration(timeout), ": is xfer-coordinator running there?")));
    }
  }
}

}  // namespace xfer
