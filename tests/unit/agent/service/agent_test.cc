// The whole agent, with the client library on one side and a fake coordinator on the other.
#include "agent/service/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/rank_client.h"
#include "common/layout/layout.h"
#include "common/rpc/channel.h"
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

  // What a rank of the tiny model registers.
  RankOptions MakeOptions(RankId id) {
    RankOptions options;
    options.job = "job";
    options.id = id;
    const TensorTable table = *BuildTensorTable(spec_.config);
    const RankLayout layout = id.role == Role::kTrainer ? *MegatronLayout(spec_, table, 0)
                                                        : *SglangLayout(spec_, table, 0);
    uint64_t offset = 0;
    for (const LocalTensor& tensor : layout.tensors) {
      options.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0, offset, {}});
      offset += NumElements(tensor.shape) * SizeOf(tensor.dtype);
    }
    memories_.push_back(*SharedMemory::Create("rank", offset));
    options.regions.push_back({memories_.back().fd(), 0, offset});
    return options;
  }
  absl::StatusOr<uint64_t> Register(const RankOptions& options) {
    auto rank = client_->Register(options);
    if (!rank.ok()) return rank.status();
    ranks_.push_back(*std::move(rank));
    return ranks_.back()->registration_id();
  }
  v1::AgentStatus Status() {
    auto stub = v1::LocalAgent::NewStub(MakeChannel("unix:" + options_.socket));
    grpc::ClientContext context;
    SetDeadline(context, absl::Seconds(20));
    v1::AgentStatus status;
    EXPECT_TRUE(stub->GetStatus(&context, {}, &status).ok());
    return status;
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

TEST_F(AgentTest, ADeadProcessIsUnregisteredAtOnce) {
  Start();
  // A client of its own, whose end takes the connection with it without unregistering: the session
  // is opened by hand and its channel is dropped.
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
