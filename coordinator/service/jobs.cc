#include <utility>

#include "common/rpc/status.h"
#include "coordinator/registry/names.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/watch.h"

namespace xfer {
namespace {

constexpr size_t kMaxOutcomeMessage = 4096;

grpc::Status Answer(absl::StatusOr<v1::Job> job, v1::Job* reply) {
  if (!job.ok()) return ToGrpc(job.status());
  *reply = *std::move(job);
  return grpc::Status::OK;
}

}  // namespace

grpc::Status CoordinatorService::CreateJob(grpc::ServerContext*,
                                           const v1::CreateJobRequest* request, v1::Job* reply) {
  return Answer(state_->registry.CreateJob(request->name(), request->spec_json()), reply);
}

grpc::Status CoordinatorService::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                        v1::Job* reply) {
  return Answer(state_->registry.GetJob(request->name()), reply);
}

grpc::Status CoordinatorService::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                                          v1::ListJobsReply* reply) {
  for (v1::Job& job : state_->registry.ListJobs()) *reply->add_jobs() = std::move(job);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::FinishJob(grpc::ServerContext*,
                                           const v1::FinishJobRequest* request, v1::Job* reply) {
  v1::Outcome outcome = request->outcome();
  outcome.set_message(Shorten(outcome.message(), kMaxOutcomeMessage));
  return Answer(state_->registry.FinishJob(request->name(), outcome), reply);
}

grpc::ServerWriteReactor<v1::JobState>* CoordinatorService::WatchJob(
    grpc::CallbackServerContext*, const v1::WatchJobRequest* request) {
  const std::string name = request->name();
  Registry* registry = &state_->registry;
  return Watch<v1::JobState>::Start({
      [registry, name](Notifier::Callback changed) -> std::function<void()> {
        const uint64_t id = registry->feed().Add(name, std::move(changed));
        return [registry, name, id] { registry->feed().Remove(name, id); };
      },
      [registry, name] { return registry->State(name); },
      [](const v1::JobState& state) { return state.job().finished(); },
  });
}

}  // namespace xfer
