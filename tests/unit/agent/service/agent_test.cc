// The whole agent, with the client library on one side and a fake coordinator on the other.
#include "agent/service/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/fd_sender.h"
#include "client/rank_client.h"
#include "common/layout/layout.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "tests/unit/agent/service/fake_coordinator.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

bool HasGone(const std::vector<v1::AgentEvent>& events, uint64_t registration_id) {
  return std::any_of(events.begin(), events.end(), [&](const v1::AgentEvent& event) {
    return event.has_rank_gone() && event.rank_gone().registration_id() == registration_id;
  });
}

// What a rank of the tiny model registers; its memory is added to `memories`.
RankOptions MakeRankOptions(const ModelSpec& spec, RankId id, std::vector<SharedMemory>& memories) {
  RankOptions options;
  options.job = "job";
  options.id = id;
  const TensorTable table = *BuildTensorTable(spec.config);
  const RankLayout layout =
      id.role == Role::kTrainer ? *MegatronLayout(spec, table, 0) : *SglangLayout(spec, table, 0);
  uint64_t offset = 0;
  for (const LocalTensor& tensor : layout.tensors) {
    TensorPlacement& placement = options.tensors.emplace_back();
    placement.name = tensor.name;
    placement.dtype = tensor.dtype;
    placement.shape = tensor.shape;
    placement.offset = offset;
    offset += NumElements(tensor.shape) * SizeOf(tensor.dtype);
  }
  memories.push_back(*SharedMemory::Create("rank", offset));
  options.regions.push_back({memories.back().fd(), 0, offset});
  return options;
}

class AgentTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(testing::TempDir(), "/xfer-agent-", getpid());
    std::filesystem::create_directories(directory_);
    options_.node = "node-a";
    options_.socket = directory_ + "/agent.sock";
    options_.coordinator = coordinator_.address();
    options_.tcp_streams = 1;
  }
  void TearDown() override {
    ranks_.clear();
    client_.reset();
    agent_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Start() {
    absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(options_);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    absl::StatusOr<std::unique_ptr<RankClient>> client =
        RankClient::Connect(options_.socket, absl::Seconds(20));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  RankOptions MakeOptions(RankId id) { return MakeRankOptions(spec_, id, memories_); }
  absl::StatusOr<uint64_t> Register(const RankOptions& options) {
    auto rank = client_->Register(options);
    if (!rank.ok()) return rank.status();
    ranks_.push_back(*std::move(rank));
    return ranks_.back()->registration_id();
  }
  // Without a session; `update`: the registration to replace, 0: none.
  absl::StatusOr<uint64_t> RegisterByHand(const RankOptions& options, uint64_t update) {
    FdSender sender = *FdSender::Connect(options_.socket);
    v1::RegisterRankRequest request;
    v1::RankHeader& header = *request.mutable_header();
    header.set_job(options.job);
    *header.mutable_id() = ToProto(options.id);
    header.set_world(1);
    header.set_pid(getpid());
    header.set_tensors(options.tensors.size());
    header.set_registration_id(update);
    v1::Region* region = header.add_regions();
    region->set_kind(v1::MEMORY_KIND_MEMFD);
    region->set_fd_token(*sender.Send(options.regions[0].fd, absl::Now() + absl::Seconds(20)));
    region->set_bytes(options.regions[0].bytes);
    for (const TensorPlacement& tensor : options.tensors) *request.add_tensors() = ToProto(tensor);
    auto stub = v1::LocalAgent::NewStub(MakeChannel("unix:" + options_.socket));
    grpc::ClientContext context;
    SetDeadline(context, absl::Seconds(20));
    v1::RegisterRankReply reply;
    auto writer =
        update == 0 ? stub->RegisterRank(&context, &reply) : stub->UpdateRank(&context, &reply);
    writer->Write(request);
    writer->WritesDone();
    if (absl::Status status = FromGrpc(writer->Finish()); !status.ok()) return status;
    return reply.registration_id();
  }
  v1::AgentStatus Status() {
    auto stub = v1::LocalAgent::NewStub(MakeChannel("unix:" + options_.socket));
    grpc::ClientContext context;
    SetDeadline(context, absl::Seconds(20));
    v1::AgentStatus status;
    EXPECT_TRUE(stub->GetStatus(&context, {}, &status).ok());
    return status;
  }

  // The first 1000 bytes of the one to the other.
  v1::PlanPart MakePlan(uint64_t trainer_id, uint64_t engine_id) {
    v1::PlanPart part;
    v1::PlanHeader& header = *part.mutable_header();
    header.set_plan_id(1);
    header.set_job("job");
    header.set_transfers(1);
    for (uint64_t id : {trainer_id, engine_id}) {
      v1::PlanRank* rank = header.add_ranks();
      rank->mutable_id()->set_role(id == trainer_id ? v1::ROLE_TRAINER : v1::ROLE_ROLLOUT);
      rank->set_node(options_.node);
      rank->set_registration_id(id);
    }
    Transfer transfer;
    transfer.tensor = 0;
    transfer.box = Box::Whole({500});
    transfer.destination = 1;
    transfer.copies.emplace_back().run = 1000;
    transfer.bytes = 1000;
    *part.add_transfers() = ToProto(transfer);
    return part;
  }
  static v1::Step MakeStep(v1::StepKind kind) {
    v1::Step step;
    step.set_sync_id(3);
    step.set_kind(kind);
    step.set_job("job");
    step.set_deadline_ms(20'000);
    step.set_version(5);
    step.set_plan_id(1);
    step.set_secret(99);
    step.set_success(true);
    if (kind != v1::STEP_KIND_COMMIT) step.add_ranks()->set_role(v1::ROLE_TRAINER);
    step.add_ranks()->set_role(v1::ROLE_ROLLOUT);
    return step;
  }

  const ModelSpec spec_ = TinySpec(2);
  FakeCoordinator coordinator_{spec_};
  std::string directory_;
  AgentOptions options_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<RankClient> client_;
  std::vector<SharedMemory> memories_;
  std::vector<std::unique_ptr<RegisteredRank>> ranks_;
};

TEST_F(AgentTest, RegistersAndUnregistersRanks) {
  Start();
  RankOptions options = MakeOptions({Role::kTrainer, 0, 0});
  options.ready_version = 3;
  absl::StatusOr<uint64_t> trainer = Register(options);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  absl::StatusOr<uint64_t> engine = Register(MakeOptions({Role::kRollout, 1, 0}));
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_NE(*trainer, *engine);
  ASSERT_TRUE(coordinator_.AwaitManifests(2));
  const v1::ManifestHeader header = coordinator_.manifests()[0];
  EXPECT_EQ(header.job(), "job");
  EXPECT_EQ(header.registration_id(), *trainer);
  EXPECT_EQ(header.ready_version(), 3);
  EXPECT_EQ(header.pid(), getpid());
  ASSERT_EQ(header.region_bytes_size(), 1);
  const v1::AgentStatus status = Status();
  EXPECT_EQ(status.node(), "node-a");
  EXPECT_EQ(status.ranks(), 2);
  EXPECT_TRUE(status.connected());
  EXPECT_GE(status.registered_bytes(), header.region_bytes(0));

  ranks_.clear();
  EXPECT_TRUE(coordinator_.Await([&](const std::vector<v1::AgentEvent>& events) {
    return HasGone(events, *trainer) && HasGone(events, *engine);
  }));
  EXPECT_EQ(Status().ranks(), 0);
}

TEST_F(AgentTest, RefusesWhatDoesNotFit) {
  Start();
  const auto message = [&](const RankOptions& options) {
    const absl::Status status = Register(options).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  RankOptions options = MakeOptions({Role::kTrainer, 0, 0});
  options.world = 2;
  EXPECT_THAT(message(options), HasSubstr("has 1 training ranks"));
  EXPECT_THAT(message(MakeOptions({Role::kRollout, 2, 0})), HasSubstr("2 engines"));
  options = MakeOptions({Role::kTrainer, 0, 0});
  options.job = "other";
  EXPECT_THAT(message(options), HasSubstr("no job other"));
  options = MakeOptions({Role::kTrainer, 0, 0});
  const std::string lost = options.tensors.back().name;
  options.tensors.pop_back();
  EXPECT_THAT(message(options), HasSubstr(lost));
  options = MakeOptions({Role::kTrainer, 0, 0});
  options.regions[0].bytes += 4096;
  EXPECT_THAT(message(options), HasSubstr("reaches beyond its file"));
  coordinator_.RefuseManifests(absl::AlreadyExistsError("held by process 3 on node z"));
  EXPECT_THAT(message(MakeOptions({Role::kTrainer, 0, 0})), HasSubstr("process 3 on node z"));
  // Nothing of all this is left.
  coordinator_.RefuseManifests(absl::OkStatus());
  EXPECT_EQ(Status().ranks(), 0);
  ASSERT_TRUE(Register(MakeOptions({Role::kTrainer, 0, 0})).ok());
  EXPECT_THAT(message(MakeOptions({Role::kTrainer, 0, 0})),
              HasSubstr(absl::StrCat("process ", getpid())));
}

TEST_F(AgentTest, RegistersOnceTheCoordinatorHasItsSession) {
  Start();
  coordinator_.RefuseManifests(absl::UnavailableError("no living session"), 2);
  const absl::Status status = Register(MakeOptions({Role::kTrainer, 0, 0})).status();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(coordinator_.refusals_left(), 0);
}

// Run as another process: registers, says so, and waits for its death.
TEST(AgentTestProcess, DISABLED_RegistersAndWaits) {
  const char* socket = getenv("XFER_TEST_SOCKET");
  const char* fd = getenv("XFER_TEST_FD");
  ASSERT_TRUE(socket != nullptr && fd != nullptr) << "is run by ADeadProcessIsUnregisteredAtOnce";
  auto client = *RankClient::Connect(socket, absl::Seconds(20));
  std::vector<SharedMemory> memories;
  auto rank = client->Register(MakeRankOptions(TinySpec(2), {Role::kTrainer, 0, 0}, memories));
  ASSERT_TRUE(rank.ok()) << rank.status();
  ASSERT_EQ(write(atoi(fd), "r", 1), 1);
  pause();
}

TEST_F(AgentTest, ADeadProcessIsUnregisteredAtOnce) {
  Start();
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const UniqueFd in(pipe_fds[0]);
  UniqueFd out(pipe_fds[1]);
  setenv("XFER_TEST_SOCKET", options_.socket.c_str(), 1);
  setenv("XFER_TEST_FD", absl::StrCat(out.get()).c_str(), 1);
  const std::array<const char*, 4> arguments = {
      "/proc/self/exe", "--gtest_also_run_disabled_tests",
      "--gtest_filter=AgentTestProcess.DISABLED_RegistersAndWaits", nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, arguments[0], nullptr, nullptr,
                        const_cast<char* const*>(arguments.data()), environ),
            0);
  out.reset();
  char byte = 0;
  ASSERT_EQ(read(in.get(), &byte, 1), 1);  // 0: the child ended
  ASSERT_EQ(coordinator_.manifests().size(), 1u);
  EXPECT_EQ(coordinator_.manifests()[0].pid(), child);
  EXPECT_EQ(Status().ranks(), 1);
  kill(child, SIGKILL);
  const absl::Time start = absl::Now();
  const uint64_t id = coordinator_.manifests()[0].registration_id();
  EXPECT_TRUE(coordinator_.Await(
      [&](const std::vector<v1::AgentEvent>& events) { return HasGone(events, id); }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  waitpid(child, nullptr, 0);
  EXPECT_EQ(Status().ranks(), 0);
}

TEST_F(AgentTest, RefusesSessionsWithoutForm) {
  Start();
  absl::StatusOr<uint64_t> id = Register(MakeOptions({Role::kTrainer, 0, 0}));
  ASSERT_TRUE(id.ok()) << id.status();
  auto stub = v1::LocalAgent::NewStub(MakeChannel("unix:" + options_.socket));
  {
    grpc::ClientContext context;
    auto stream = stub->RankSession(&context);
    v1::RankEvent event;
    event.mutable_attach()->set_registration_id(*id);
    stream->Write(event);
    v1::RankCommand command;
    EXPECT_FALSE(stream->Read(&command));  // there is a session already
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  }
  {
    grpc::ClientContext context;
    auto stream = stub->RankSession(&context);
    v1::RankEvent event;
    event.mutable_attach()->set_registration_id(*id + 1000);
    stream->Write(event);
    v1::RankCommand command;
    EXPECT_FALSE(stream->Read(&command));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  }
  {
    grpc::ClientContext context;
    auto stream = stub->RankSession(&context);
    v1::RankEvent event;
    event.mutable_ready()->set_version(1);
    stream->Write(event);
    v1::RankCommand command;
    EXPECT_FALSE(stream->Read(&command));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  EXPECT_EQ(Status().ranks(), 1);
}

TEST_F(AgentTest, AnUpdateTakesTheSessionAlong) {
  Start();
  const RankOptions options = MakeOptions({Role::kTrainer, 0, 0});
  const uint64_t old_id = *Register(options);
  absl::StatusOr<uint64_t> fresh = RegisterByHand(options, old_id);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_NE(*fresh, old_id);
  EXPECT_EQ(Status().ranks(), 1);
  EXPECT_TRUE(absl::IsNotFound(RegisterByHand(options, old_id).status()));
  // Its session is that of the new registration now.
  ASSERT_TRUE(ranks_[0]->ReportReady(4).ok());
  EXPECT_TRUE(coordinator_.Await([&](const std::vector<v1::AgentEvent>& events) {
    return std::any_of(events.begin(), events.end(), [&](const v1::AgentEvent& event) {
      return event.has_rank_report() && event.rank_report().registration_id() == *fresh;
    });
  }));
  ranks_.clear();
  EXPECT_TRUE(coordinator_.Await(
      [&](const std::vector<v1::AgentEvent>& events) { return HasGone(events, *fresh); }));
}

TEST_F(AgentTest, ARankWithoutASessionIsDropped) {
  options_.attach_time = absl::Milliseconds(200);
  Start();
  absl::StatusOr<uint64_t> id = RegisterByHand(MakeOptions({Role::kTrainer, 0, 0}), 0);
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(coordinator_.Await(
      [&](const std::vector<v1::AgentEvent>& events) { return HasGone(events, *id); }));
  EXPECT_EQ(Status().ranks(), 0);
}

TEST_F(AgentTest, ReportsReachTheCoordinator) {
  Start();
  ASSERT_TRUE(Register(MakeOptions({Role::kTrainer, 0, 0})).ok());
  ASSERT_TRUE(ranks_[0]->ReportReady(9).ok());
  ASSERT_TRUE(ranks_[0]->ReportVerdict(9, absl::DataLossError("differs")).ok());
  EXPECT_TRUE(coordinator_.Await([](const std::vector<v1::AgentEvent>& events) {
    const bool ready = std::any_of(events.begin(), events.end(), [](const v1::AgentEvent& event) {
      return event.has_rank_report() && event.rank_report().ready_version() == 9;
    });
    const bool verdict = std::any_of(events.begin(), events.end(), [](const v1::AgentEvent& event) {
      return event.has_rank_report() &&
             event.rank_report().owner_report().outcome().message() == "differs";
    });
    return ready && verdict;
  }));
}

TEST_F(AgentTest, ExecutesASyncFromStepsAndHooks) {
  Start();
  absl::Mutex mu;
  std::vector<HookCall> calls;
  const auto on_hook = [&](const HookCall& call) {
    absl::MutexLock lock(&mu);
    calls.push_back(call);
    return call.hook == Hook::kPostLoad ? absl::InternalError("does not load") : absl::OkStatus();
  };
  RankOptions trainer = MakeOptions({Role::kTrainer, 0, 0});
  trainer.on_hook = on_hook;  // but it wants none
  RankOptions engine = MakeOptions({Role::kRollout, 0, 0});
  engine.on_hook = on_hook;
  engine.hooks = {Hook::kPause, Hook::kPostLoad, Hook::kResume};
  const uint64_t trainer_id = *Register(trainer);
  const uint64_t engine_id = *Register(engine);
  memories_[0].bytes()[10] = std::byte{77};
  coordinator_.SetPlan(MakePlan(trainer_id, engine_id));

  const auto run = [&](v1::StepKind kind) { return coordinator_.RunStep(MakeStep(kind)); };
  for (v1::StepKind kind : {v1::STEP_KIND_CONNECT, v1::STEP_KIND_PAUSE, v1::STEP_KIND_TRANSFER}) {
    const v1::StepResult result = run(kind);
    EXPECT_EQ(result.outcome().code(), 0) << result.outcome().message();
  }
  EXPECT_EQ(memories_[1].bytes()[10], std::byte{77});
  const v1::StepResult commit = run(v1::STEP_KIND_COMMIT);
  ASSERT_EQ(commit.ranks_size(), 1);
  EXPECT_THAT(commit.ranks(0).outcome().message(), HasSubstr("does not load"));
  EXPECT_EQ(run(v1::STEP_KIND_RESUME).outcome().code(), 0);
  absl::MutexLock lock(&mu);
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].hook, Hook::kPause);
  EXPECT_EQ(calls[0].version, 5);
  EXPECT_GT(calls[0].deadline, absl::Now());
  EXPECT_TRUE(calls[2].outcome.ok());
}

TEST_F(AgentTest, TwoAgentsDoNotShareASocket) {
  Start();
  AgentOptions second = options_;
  const absl::Status status = Agent::Start(second).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(options_.socket));
  struct stat info = {};
  ASSERT_EQ(stat(options_.socket.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
  EXPECT_EQ(Status().node(), "node-a");  // the first one is unharmed
}

TEST_F(AgentTest, SaysWhoItIs) {
  Start();
  auto stub = v1::PeerAgent::NewStub(MakeChannel(agent_->peer_address()));
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(20));
  v1::IdentifyReply reply;
  ASSERT_TRUE(stub->Identify(&context, {}, &reply).ok());
  EXPECT_EQ(reply.node(), "node-a");
  EXPECT_EQ(reply.incarnation(), Status().incarnation());
  EXPECT_EQ(reply.data_address(), agent_->data_address());
  EXPECT_THAT(reply.transports(), testing::ElementsAre("tcp"));
}

TEST_F(AgentTest, TheEndOfTheAgentIsNoticed) {
  Start();
  absl::Notification lost;
  RankOptions options = MakeOptions({Role::kRollout, 0, 0});
  options.on_lost = [&](const absl::Status&) { lost.Notify(); };
  ASSERT_TRUE(Register(options).ok());
  agent_->Stop("test");
  EXPECT_TRUE(lost.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_FALSE(std::filesystem::exists(options_.socket));
  EXPECT_TRUE(coordinator_.Await([](const std::vector<v1::AgentEvent>& events) {
    return std::any_of(events.begin(), events.end(),
                       [](const v1::AgentEvent& event) { return event.has_goodbye(); });
  }));
}

TEST(AgentOptionsTest, AreChecked) {
  AgentOptions options;
  options.coordinator = "127.0.0.1:1";
  options.node = "a";
  EXPECT_TRUE(CheckAgentOptions(options).ok());
  AgentOptions open = options;
  open.listen = "0.0.0.0:0";
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckAgentOptions(open)));
  open.insecure = true;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckAgentOptions(open)));  // peers need a name
  open.advertise = "10.0.0.1";
  EXPECT_TRUE(CheckAgentOptions(open).ok());
  AgentOptions chunk = options;
  chunk.chunk_bytes = 5000;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckAgentOptions(chunk)));
  AgentOptions bad = options;
  bad.listen = "nonsense";
  EXPECT_FALSE(CheckAgentOptions(bad).ok());
}

}  // namespace
}  // namespace xfer
