#include "client/rank_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/unit/client/fake_agent.h"

namespace xfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RankClientTest : public ::testing::Test {
 protected:
  RankClientTest() {
    memory_ = std::make_unique<SharedMemory>(*SharedMemory::Create("test", 8'192));
    options_.job = "job";
    options_.id = {Role::kRollout, 1, 2};
    options_.world = 4;
    options_.device = 3;
    options_.regions = {{memory_->fd(), 4'096, 4'096}};
    for (int i = 0; i < 1'000; ++i) {
      options_.tensors.push_back(
          {absl::StrCat("tensor.", i), DType::kBF16, {2}, 0, uint64_t(4 * i)});
    }
    options_.hooks = {Hook::kPause, Hook::kResume};
    options_.deadline = kTestPatience;
  }

  std::unique_ptr<RankClient> Connect() {
    auto client = RankClient::Connect(agent_.socket(), kTestPatience);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  std::unique_ptr<RegisteredRank> Register(RankClient& client) {
    auto rank = client.Register(options_);
    EXPECT_TRUE(rank.ok()) << rank.status();
    return rank.ok() ? *std::move(rank) : nullptr;
  }
  static v1::RankCommand Call(v1::Hook hook) {
    v1::RankCommand command;
    command.mutable_hook_call()->set_call(5);
    command.mutable_hook_call()->set_hook(hook);
    command.mutable_hook_call()->set_sync_id(9);
    command.mutable_hook_call()->set_version(3);
    command.mutable_hook_call()->set_deadline_ms(60'000);
    return command;
  }

  FakeAgent agent_;
  std::unique_ptr<SharedMemory> memory_;
  RankOptions options_;
};

TEST_F(RankClientTest, RegistersHeaderTensorsAndMemory) {
  auto client = Connect();
  auto rank = Register(*client);
  ASSERT_NE(rank, nullptr);
  EXPECT_EQ(rank->registration_id(), 17u);
  FakeAgent::Registration& got = agent_.registration();
  EXPECT_EQ(got.header.job(), "job");
  EXPECT_EQ(got.header.id().role(), v1::ROLE_ROLLOUT);
  EXPECT_EQ(got.header.id().engine(), 1);
  EXPECT_EQ(got.header.id().rank(), 2);
  EXPECT_EQ(got.header.world(), 4);
  EXPECT_EQ(got.header.device(), 3);
  EXPECT_EQ(got.header.pid(), getpid());
  EXPECT_EQ(got.header.tensors(), 1'000u);
  ASSERT_EQ(got.tensors.size(), 1'000u);
  EXPECT_EQ(got.tensors[999].name(), "tensor.999");
  EXPECT_EQ(got.header.regions(0).offset_bytes(), 4'096u);
  ASSERT_EQ(got.fds.size(), 1u);
  memory_->bytes()[4'096] = std::byte{42};
  char seen = 0;
  EXPECT_EQ(pread(got.fds[0].get(), &seen, 1, 4'096), 1);
  EXPECT_EQ(seen, 42);
  const v1::RankEvent attach = agent_.WaitForEvent(1);
  EXPECT_EQ(attach.attach().registration_id(), 17u);
  EXPECT_THAT(attach.attach().hooks(), ElementsAre(v1::HOOK_PAUSE, v1::HOOK_RESUME));
}

TEST_F(RankClientTest, RunsHooksAndAnswersWithTheirOutcome) {
  HookCall seen;
  options_.on_hook = [&seen](const HookCall& call) {
    seen = call;
    return absl::AbortedError("not now");
  };
  auto client = Connect();
  auto rank = Register(*client);
  ASSERT_NE(rank, nullptr);
  agent_.Send(Call(v1::HOOK_PAUSE));
  const v1::RankEvent done = agent_.WaitForEvent(2);
  EXPECT_EQ(done.hook_done().call(), 5u);
  EXPECT_EQ(done.hook_done().outcome().code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(done.hook_done().outcome().message(), "not now");
  EXPECT_EQ(seen.hook, Hook::kPause);
  EXPECT_EQ(seen.sync_id, 9u);
  EXPECT_EQ(seen.version, 3);
  EXPECT_GT(seen.deadline, absl::Now() + absl::Seconds(20));
}

TEST_F(RankClientTest, ReportsVersionsAndVerdicts) {
  auto client = Connect();
  auto rank = Register(*client);
  ASSERT_NE(rank, nullptr);
  EXPECT_TRUE(rank->ReportReady(7).ok());
  EXPECT_EQ(agent_.WaitForEvent(2).ready().version(), 7);
  EXPECT_TRUE(rank->ReportVerdict(7, absl::DataLossError("tensor x differs")).ok());
  const v1::OwnerVerdict verdict = agent_.WaitForEvent(3).verdict();
  EXPECT_EQ(verdict.version(), 7);
  EXPECT_EQ(verdict.outcome().message(), "tensor x differs");
}

TEST_F(RankClientTest, DestructionUnregistersAndIsNoLoss) {
  bool lost = false;
  options_.on_lost = [&lost](const absl::Status&) { lost = true; };
  auto client = Connect();
  auto rank = Register(*client);
  ASSERT_NE(rank, nullptr);
  rank.reset();
  EXPECT_THAT(agent_.WaitForUnregistered(1), ElementsAre(17u));
  EXPECT_FALSE(lost);
}

TEST_F(RankClientTest, TellsWhenTheAgentGoes) {
  absl::Notification lost;
  options_.on_lost = [&lost](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    lost.Notify();
  };
  auto client = Connect();
  auto rank = Register(*client);
  ASSERT_NE(rank, nullptr);
  agent_.Shutdown();
  ASSERT_TRUE(lost.WaitForNotificationWithTimeout(kTestPatience));
  EXPECT_THAT(std::string(rank->ReportReady(2).message()),
              HasSubstr("engine 1 rank 2 has lost its agent"));
}

TEST_F(RankClientTest, RefusalNamesRankJobAndSocket) {
  agent_.set_refusal(absl::InvalidArgumentError("tensor x is missing"));
  auto client = Connect();
  const absl::Status status = client->Register(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("registering engine 1 rank 2 of job job with the agent at ",
                         agent_.socket(), ": tensor x is missing"));
}

TEST_F(RankClientTest, ASilentAgentIsADeadlineAndUnregistered) {
  agent_.set_attach(false);
  options_.deadline = absl::Milliseconds(500);
  auto client = Connect();
  EXPECT_EQ(client->Register(options_).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(agent_.WaitForUnregistered(1), ElementsAre(17u));
}

TEST_F(RankClientTest, ABadDescriptorIsNamed) {
  options_.regions[0].fd = 1'000'000;
  auto client = Connect();
  const absl::Status status = client->Register(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("region descriptor 1000000 is not open"));
}

TEST(RankClientConnectTest, NamesASocketWhereNobodyIs) {
  const absl::Status status =
      RankClient::Connect("/nowhere/agent.sock", absl::Milliseconds(200)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/agent.sock"));
}

}  // namespace
}  // namespace xfer
