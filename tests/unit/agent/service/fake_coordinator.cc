#include "tests/unit/agent/service/fake_coordinator.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/rpc/status.h"

namespace xfer {

ModelSpec TinySpec(int32_t engines) {
  ModelSpec spec = *FindPreset("Qwen3-4B");
  spec.config = *KeepLayers(spec.config, 1);
  spec.train = {};
  spec.rollout = {};
  spec.rollout.world = engines;
  absl::StatusOr<ModelSpec> small = Shrink(spec);
  EXPECT_TRUE(small.ok()) << small.status();
  return *std::move(small);
}

FakeCoordinator::FakeCoordinator(ModelSpec spec, int port, absl::Duration lease)
    : spec_json_(ToJson(spec)), lease_(lease) {
  RpcServerOptions options;
  options.address = absl::StrCat("127.0.0.1:", port);
  options.services = {static_cast<v1::Coordinator::Service*>(this),
                      static_cast<v1::AgentHub::Service*>(this)};
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  port_ = server_->port();
}

FakeCoordinator::~FakeCoordinator() { server_->Shutdown(absl::ZeroDuration()); }

std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", port_); }

bool FakeCoordinator::Await(const std::function<bool(const std::vector<v1::AgentEvent>&)>& enough) {
  const auto condition = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return enough(events_); };
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&condition), absl::Seconds(20));
}

bool FakeCoordinator::AwaitManifests(size_t n) {
  const auto condition = [&]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return manifests_.size() >= n; };
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&condition), absl::Seconds(20));
}

std::vector<v1::ManifestHeader> FakeCoordinator::manifests() const {
  absl::MutexLock lock(&mu_);
  return manifests_;
}

std::vector<v1::AgentEvent> FakeCoordinator::events() const {
  absl::MutexLock lock(&mu_);
  return events_;
}

void FakeCoordinator::Command(const v1::AgentCommand& command) {
  absl::MutexLock write_lock(&write_mu_);
  grpc::ServerReaderWriter<v1::AgentCommand, v1::AgentEvent>* stream = nullptr;
  {
    absl::MutexLock lock(&mu_);
    stream = stream_;
  }
  ASSERT_NE(stream, nullptr);
  stream->Write(command);
}

v1::StepResult FakeCoordinator::RunStep(const v1::Step& step) {
  v1::AgentCommand command;
  *command.mutable_step() = step;
  Command(command);
  v1::StepResult result;
  EXPECT_TRUE(Await([&](const std::vector<v1::AgentEvent>& events) {
    for (const v1::AgentEvent& event : events) {
      if (!event.has_step_result() || event.step_result().kind() != step.kind() ||
          event.step_result().sync_id() != step.sync_id()) {
        continue;
      }
      result = event.step_result();
      return true;
    }
    return false;
  }));
  return result;
}

void FakeCoordinator::SetPlan(v1::PlanPart plan) {
  absl::MutexLock lock(&mu_);
  plan_ = std::move(plan);
}

grpc::Status FakeCoordinator::FetchPlan(grpc::ServerContext*, const v1::FetchPlanRequest*,
                                        grpc::ServerWriter<v1::PlanPart>* writer) {
  absl::MutexLock lock(&mu_);
  writer->Write(plan_);
  return grpc::Status::OK;
}

void FakeCoordinator::BreakSession() {
  absl::MutexLock lock(&mu_);
  if (context_ != nullptr) context_->TryCancel();
}

void FakeCoordinator::RefuseManifests(absl::Status status, int times) {
  absl::MutexLock lock(&mu_);
  refusals_left_ = status.ok() ? 0 : times;
  refusal_ = std::move(status);
}

int FakeCoordinator::refusals_left() const {
  absl::MutexLock lock(&mu_);
  return refusals_left_;
}

grpc::Status FakeCoordinator::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                     v1::Job* job) {
  if (request->name() != "job") {
    return ToGrpc(absl::NotFoundError(absl::StrCat("no job ", request->name())));
  }
  job->set_name("job");
  job->set_spec_json(spec_json_);
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::Session(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::AgentCommand, v1::AgentEvent>* stream) {
  v1::AgentEvent event;
  while (stream->Read(&event)) {
    v1::AgentCommand answer;
    if (event.has_hello()) {
      answer.mutable_welcome()->set_lease_ms(absl::ToInt64Milliseconds(lease_));
      answer.mutable_welcome()->set_heartbeat_ms(50);
    } else if (event.has_heartbeat()) {
      v1::HeartbeatAck* ack = answer.mutable_heartbeat_ack();
      ack->set_agent_send_ns(event.heartbeat().agent_send_ns());
      // A coordinator whose clock is an hour ahead.
      const int64_t now = Clock::Real()->MonotonicNanos() + 3'600'000'000'000;
      ack->set_coordinator_receive_ns(now);
      ack->set_coordinator_send_ns(now);
    }
    if (answer.command_case() != v1::AgentCommand::COMMAND_NOT_SET) {
      absl::MutexLock write_lock(&write_mu_);
      stream->Write(answer);
    }
    absl::MutexLock lock(&mu_);
    stream_ = stream;
    context_ = context;
    events_.push_back(event);
  }
  absl::MutexLock write_lock(&write_mu_);
  absl::MutexLock lock(&mu_);
  if (stream_ == stream) {
    stream_ = nullptr;
    context_ = nullptr;
  }
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::PublishManifest(grpc::ServerContext*,
                                              grpc::ServerReader<v1::ManifestPart>* reader,
                                              v1::PublishManifestReply* reply) {
  v1::ManifestPart part;
  v1::ManifestHeader header;
  uint32_t pieces = 0;
  while (reader->Read(&part)) {
    if (part.has_header()) header = part.header();
    pieces += part.pieces_size();
  }
  EXPECT_EQ(pieces, header.pieces());
  absl::MutexLock lock(&mu_);
  if (refusals_left_ != 0) {
    if (refusals_left_ > 0) --refusals_left_;
    return ToGrpc(refusal_);
  }
  manifests_.push_back(header);
  reply->set_generation(manifests_.size());
  return grpc::Status::OK;
}

}  // namespace xfer
