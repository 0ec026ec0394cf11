// A coordinator in this process, and a job of one trainer and one engine of one rank for it.
#ifndef XFER_TESTS_UNIT_COORDINATOR_COORDINATOR_FIXTURE_H_
#define XFER_TESTS_UNIT_COORDINATOR_COORDINATOR_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "common/model/model.h"
#include "coordinator/coordinator.h"
#include "tests/unit/coordinator/scripted_agent.h"

namespace xfer {

inline constexpr RankId kTrainer{Role::kTrainer, 0, 0};
inline constexpr RankId kRollout{Role::kRollout, 0, 0};

// One trainer and one engine of one rank; the model is a shrunken preset.
inline ModelSpec TinySpec() {
  ModelSpec spec = *Shrink(*FindPreset("Qwen3-4B"));
  spec.config = *KeepLayers(spec.config, 1);
  spec.train = TrainParallelism();
  spec.rollout = RolloutParallelism();
  return spec;
}

// All of the model, row by row, in one region.
inline Manifest WholeModel(const ModelSpec& spec) {
  const TensorTable table = *BuildTensorTable(spec.config);
  Manifest manifest;
  uint64_t offset = 0;
  for (TensorId id = 0; id < table.size(); ++id) {
    const TensorInfo& tensor = table[id];
    Piece piece;
    piece.tensor = id;
    piece.box = Box::Whole(tensor.shape);
    piece.dtype = tensor.dtype;
    piece.offset = offset;
    piece.strides = Dims(tensor.shape.size(), SizeOf(tensor.dtype));
    for (size_t d = tensor.shape.size() - 1; d > 0; --d) {
      piece.strides[d - 1] = piece.strides[d] * tensor.shape[d];
    }
    offset += static_cast<uint64_t>(tensor.bytes());
    manifest.pieces.push_back(piece);
  }
  manifest.region_bytes = {offset};
  return manifest;
}

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest() : spec_(TinySpec()), manifest_(WholeModel(spec_)) {
    // Scripted agents send no heartbeats by themselves.
    Coordinator::Options options;
    options.lease = kPatience;
    StartCoordinator(options);
  }

  void StartCoordinator(Coordinator::Options options) {
    options.listen = "127.0.0.1:0";
    coordinator_ = *Coordinator::Start(options);
    stub_ = v1::Coordinator::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", coordinator_->port())));
  }

  // Calls a unary RPC.
  template <class Request, class Reply>
  absl::Status Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Reply*),
                    const Request& request, Reply* reply) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    context.set_wait_for_ready(true);
    return FromGrpc((stub_.get()->*method)(&context, request, reply));
  }

  std::unique_ptr<ScriptedAgent> Agent(const std::string& node, uint64_t incarnation = 7,
                                       int address = 0) {
    auto agent = std::make_unique<ScriptedAgent>(
        coordinator_->port(), node, incarnation,
        address != 0 ? address : 20'000 + 10 * static_cast<int>(node.back()));
    return agent;
  }
  void CreateJob() {
    v1::CreateJobRequest request;
    request.set_name("job");
    request.set_spec_json(ToJson(spec_));
    v1::Job job;
    const absl::Status status = Call(&v1::Coordinator::Stub::CreateJob, request, &job);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Agents a (the trainer's) and b (the engine's), both registered.
  void Populate() {
    CreateJob();
    a_ = Agent("a");
    b_ = Agent("b");
    for (ScriptedAgent* agent : {a_.get(), b_.get()}) {
      ASSERT_TRUE(agent->Await(v1::AgentCommand::kWelcome).has_value());
      ASSERT_TRUE(agent->Await(v1::AgentCommand::kReregister).has_value());
    }
    absl::Status status = a_->Publish(a_->Header("job", kTrainer, manifest_), manifest_);
    ASSERT_TRUE(status.ok()) << status;
    status = b_->Publish(b_->Header("job", kRollout, manifest_), manifest_);
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::StatusOr<uint64_t> Trigger() {
    v1::TriggerSyncRequest request;
    request.set_job("job");
    request.set_deadline_ms(60'000);
    v1::TriggerSyncReply reply;
    const absl::Status status = Call(&v1::Coordinator::Stub::TriggerSync, request, &reply);
    if (!status.ok()) return status;
    return reply.sync_id();
  }
  // Follows a sync to its end; returns the last state seen. Notifies `watching` at the first.
  v1::Sync Watch(uint64_t id, absl::Notification* watching = nullptr) {
    grpc::ClientContext context;
    SetDeadline(context, kPatience);
    v1::WatchSyncRequest request;
    request.set_sync_id(id);
    auto reader = stub_->WatchSync(&context, request);
    v1::Sync sync;
    for (bool first = true; reader->Read(&sync); first = false) {
      if (first && watching != nullptr) watching->Notify();
    }
    const absl::Status status = FromGrpc(reader->Finish());
    EXPECT_TRUE(status.ok()) << status;
    return sync;
  }
  v1::Sync Run() {
    const absl::StatusOr<uint64_t> id = Trigger();
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok() ? Watch(*id) : v1::Sync();
  }
  v1::NodeState StateOf(const std::string& node) {
    v1::ListNodesReply reply;
    EXPECT_TRUE(Call(&v1::Coordinator::Stub::ListNodes, v1::ListNodesRequest(), &reply).ok());
    for (const v1::NodeInfo& info : reply.nodes()) {
      if (info.name() == node) return info.state();
    }
    return v1::NODE_STATE_UNSPECIFIED;
  }

  const ModelSpec spec_;
  const Manifest manifest_;
  FakeClock clock_{1'000'000'000};  // of the tests that want one; outlives the coordinator
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<ScriptedAgent> a_;
  std::unique_ptr<ScriptedAgent> b_;
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COORDINATOR_COORDINATOR_FIXTURE_H_
