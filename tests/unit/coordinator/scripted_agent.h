// An agent over real gRPC that does what a test says.
#ifndef XFER_TESTS_UNIT_COORDINATOR_SCRIPTED_AGENT_H_
#define XFER_TESTS_UNIT_COORDINATOR_SCRIPTED_AGENT_H_

#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/plan/plan.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {

// Nothing takes so long unless it hangs, not even under a sanitizer on a machine with too much to
// do.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Opens a session at once; Steps are answered well unless a test says otherwise. Thread-safe.
class ScriptedAgent {
 public:
  using Behaviour = std::function<std::optional<v1::StepResult>(const v1::Step&, v1::StepResult)>;

  ScriptedAgent(int port, std::string node, uint64_t incarnation, int address)
      : node_(std::move(node)),
        incarnation_(incarnation),
        channel_(MakeChannel(absl::StrCat("127.0.0.1:", port))),
        stub_(v1::AgentHub::NewStub(channel_)) {
    // A busy machine may take longer over a connection than the channel allows for one attempt.
    context_.set_wait_for_ready(true);
    stream_ = stub_->Session(&context_);
    v1::AgentEvent event;
    v1::Hello* hello = event.mutable_hello();
    hello->set_node(node_);
    hello->set_incarnation(incarnation_);
    hello->set_peer_address(absl::StrCat("127.0.0.1:", address));
    hello->set_data_address(absl::StrCat("127.0.0.1:", address + 1));
    hello->set_nics(1);
    Send(event);
    reader_ = std::thread([this] { Read(); });
  }
  ~ScriptedAgent() {
    context_.TryCancel();
    reader_.join();
  }

  void Behave(Behaviour behaviour) {
    absl::MutexLock lock(&mu_);
    behaviour_ = std::move(behaviour);
  }
  void Send(const v1::AgentEvent& event) {
    absl::MutexLock lock(&write_mu_);
    stream_->Write(event);
  }
  void Break() { context_.TryCancel(); }
  void SayGoodbye() {
    v1::AgentEvent event;
    event.mutable_goodbye()->set_reason("test");
    Send(event);
  }

  // The next command of this kind that has come or will come, within kPatience.
  std::optional<v1::AgentCommand> Await(v1::AgentCommand::CommandCase kind) {
    const absl::Time limit = absl::Now() + kPatience;
    absl::MutexLock lock(&mu_);
    while (true) {
      for (auto it = commands_.begin(); it != commands_.end(); ++it) {
        if (it->command_case() != kind) continue;
        v1::AgentCommand command = *it;
        commands_.erase(it);
        return command;
      }
      if (ended_ || changed_.WaitWithDeadline(&mu_, limit)) return std::nullopt;
    }
  }
  // How the session ended, within kPatience.
  absl::Status AwaitEnd() {
    const absl::Time limit = absl::Now() + kPatience;
    absl::MutexLock lock(&mu_);
    while (!ended_) {
      if (changed_.WaitWithDeadline(&mu_, limit)) {
        return absl::InternalError("the session has not ended");
      }
    }
    return end_;
  }

  v1::ManifestHeader Header(const std::string& job, const RankId& id, const Manifest& manifest) {
    v1::ManifestHeader header;
    header.set_job(job);
    *header.mutable_id() = ToProto(id);
    header.set_node(node_);
    header.set_incarnation(incarnation_);
    header.set_registration_id(1);
    header.set_pid(1);
    for (uint64_t bytes : manifest.region_bytes) header.add_region_bytes(bytes);
    if (id.role == Role::kTrainer) header.set_ready_version(1);
    header.set_pieces(static_cast<uint32_t>(manifest.pieces.size()));
    return header;
  }
  absl::Status Publish(const v1::ManifestHeader& header, const Manifest& manifest) {
    {
      absl::MutexLock lock(&mu_);
      if (header.id().role() == v1::ROLE_ROLLOUT) ranks_.push_back(header.id());
    }
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::PublishManifestReply reply;
    auto writer = stub_->PublishManifest(&context, &reply);
    v1::ManifestPart part;
    *part.mutable_header() = header;
    for (const Piece& piece : manifest.pieces) {
      *part.add_pieces() = ToProto(piece);
      if (part.pieces_size() < 3) continue;
      writer->Write(part);
      part.Clear();
    }
    writer->Write(part);
    writer->WritesDone();
    return FromGrpc(writer->Finish());
  }
  absl::Status FetchPlan(uint64_t plan_id, std::vector<v1::PlanPart>* parts) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::FetchPlanRequest request;
    request.set_plan_id(plan_id);
    request.set_node(node_);
    auto reader = stub_->FetchPlan(&context, request);
    v1::PlanPart part;
    while (reader->Read(&part)) parts->push_back(part);
    return FromGrpc(reader->Finish());
  }
  absl::Status ReportTimings(const v1::TransferTimings& timings) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::ReportTimingsReply reply;
    auto writer = stub_->ReportTimings(&context, &reply);
    writer->Write(timings);
    writer->WritesDone();
    return FromGrpc(writer->Finish());
  }

 private:
  void Read() {
    v1::AgentCommand command;
    while (stream_->Read(&command)) {
      if (command.has_step()) Answer(command.step());
      absl::MutexLock lock(&mu_);
      commands_.push_back(command);
      changed_.SignalAll();
    }
    const absl::Status end = FromGrpc(stream_->Finish());
    absl::MutexLock lock(&mu_);
    end_ = end;
    ended_ = true;
    changed_.SignalAll();
  }
  void Answer(const v1::Step& step) {
    v1::StepResult result;
    result.set_sync_id(step.sync_id());
    result.set_kind(step.kind());
    Behaviour behaviour;
    {
      absl::MutexLock lock(&mu_);
      if (step.kind() == v1::STEP_KIND_TRANSFER) {
        for (const v1::RankId& id : ranks_) *result.add_ranks()->mutable_id() = id;
      }
      behaviour = behaviour_;
    }
    std::optional<v1::StepResult> answer = behaviour ? behaviour(step, result) : result;
    if (!answer.has_value()) return;
    v1::AgentEvent event;
    *event.mutable_step_result() = *answer;
    Send(event);
  }

  const std::string node_;
  const uint64_t incarnation_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentHub::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentEvent, v1::AgentCommand>> stream_;
  absl::Mutex write_mu_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  Behaviour behaviour_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::AgentCommand> commands_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::RankId> ranks_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
  std::thread reader_;
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COORDINATOR_SCRIPTED_AGENT_H_
