#include "agent/service/coordinator_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/service/fake_coordinator.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

class RecordingHandler final : public SessionHandler {
 public:
  void OnCommand(v1::AgentCommand command) override {
    absl::MutexLock lock(&mu_);
    commands_.push_back(std::move(command));
  }
  void OnSessionBroken(const absl::Status&) override {
    absl::MutexLock lock(&mu_);
    ++broken_;
  }
  void OnLost(const absl::Status&) override {
    absl::MutexLock lock(&mu_);
    ++lost_;
  }
  std::vector<RankPin> RanksToPublish() override { return ranks_.All(); }

  bool Await(const std::function<bool()>& enough) {
    const auto condition = [&]() { return enough(); };
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&condition), absl::Seconds(20));
  }

  void AddRank() {
    LocalRankInfo info;
    info.job = "job";
    info.id = {Role::kTrainer, 0, 0};
    ASSERT_TRUE(ranks_.Add(info, {}, 3).ok());
  }

  absl::Mutex mu_;
  std::vector<v1::AgentCommand> commands_;
  int broken_ = 0;
  int lost_ = 0;
  RankTable ranks_{1, {}};
};

SessionOptions Options(const std::string& address) {
  SessionOptions options;
  options.coordinator = address;
  options.hello.set_node("a");
  options.hello.set_incarnation(42);
  return options;
}

size_t CountHellos(const std::vector<v1::AgentEvent>& events) {
  return std::count_if(events.begin(), events.end(),
                       [](const v1::AgentEvent& event) { return event.has_hello(); });
}

class CoordinatorSessionTest : public testing::Test {
 protected:
  void Start(const std::string& address) {
    session_.emplace(Options(address));
    session_->Start(&handler_);
  }
  void TearDown() override {
    if (session_.has_value()) session_->Stop("test over");
  }
  RecordingHandler handler_;
  std::optional<FakeCoordinator> coordinator_;
  std::optional<CoordinatorSession> session_;
};

TEST_F(CoordinatorSessionTest, SaysHelloPublishesAndLearnsTheClock) {
  coordinator_.emplace(TinySpec());
  handler_.AddRank();
  Start(coordinator_->address());
  ASSERT_TRUE(session_->WaitConnected(absl::Now() + absl::Seconds(20)).ok());
  ASSERT_TRUE(coordinator_->AwaitManifests(1));
  const v1::ManifestHeader header = coordinator_->manifests()[0];
  EXPECT_EQ(header.node(), "a");
  EXPECT_EQ(header.incarnation(), 42u);
  EXPECT_EQ(header.ready_version(), 3);
  // Heartbeats go on, and carry what the earlier ones found out.
  ASSERT_TRUE(coordinator_->Await([](const std::vector<v1::AgentEvent>& events) {
    return events.back().has_heartbeat() && events.back().heartbeat().round_trip_ns() > 0;
  }));
  EXPECT_NEAR(session_->ClockOffsetNanos(), 3'600'000'000'000, 1'000'000'000);
  EXPECT_TRUE(coordinator_->events()[0].has_hello());
}

TEST_F(CoordinatorSessionTest, ComesBackAndPublishesAgain) {
  coordinator_.emplace(TinySpec());
  handler_.AddRank();
  Start(coordinator_->address());
  ASSERT_TRUE(coordinator_->AwaitManifests(1));
  coordinator_->BreakSession();
  ASSERT_TRUE(coordinator_->Await(
      [](const std::vector<v1::AgentEvent>& events) { return CountHellos(events) == 2; }));
  ASSERT_TRUE(coordinator_->AwaitManifests(2));
  EXPECT_TRUE(handler_.Await([&] { return handler_.broken_ == 1; }));
  EXPECT_EQ(handler_.lost_, 0);
  v1::AgentCommand command;
  command.mutable_reregister();
  coordinator_->Command(command);
  ASSERT_TRUE(coordinator_->AwaitManifests(3));
}

TEST_F(CoordinatorSessionTest, WaitsForACoordinatorThatIsNotThereYet) {
  coordinator_.emplace(TinySpec());
  const int port = coordinator_->port();
  coordinator_.reset();
  Start(absl::StrCat("127.0.0.1:", port));
  const absl::Status status = session_->WaitConnected(absl::Now() + absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("127.0.0.1:", port)));
  coordinator_.emplace(TinySpec(), port);
  EXPECT_TRUE(session_->WaitConnected(absl::Now() + absl::Seconds(20)).ok());
}

TEST_F(CoordinatorSessionTest, IsLostAfterTheLease) {
  coordinator_.emplace(TinySpec(), 0, absl::Milliseconds(300));
  Start(coordinator_->address());
  ASSERT_TRUE(session_->WaitConnected(absl::Now() + absl::Seconds(20)).ok());
  const int port = coordinator_->port();
  coordinator_.reset();
  EXPECT_TRUE(handler_.Await([&] { return handler_.lost_ == 1; }));
  EXPECT_EQ(handler_.broken_, 1);
  coordinator_.emplace(TinySpec(), port);
  EXPECT_TRUE(session_->WaitConnected(absl::Now() + absl::Seconds(20)).ok());
}

TEST_F(CoordinatorSessionTest, RankNewsWaitsForTheNextSessionAnswersDoNot) {
  coordinator_.emplace(TinySpec());
  const int port = coordinator_->port();
  coordinator_.reset();
  Start(absl::StrCat("127.0.0.1:", port));
  v1::AgentEvent answer;
  answer.mutable_step_result()->set_sync_id(1);
  session_->Send(answer);
  v1::AgentEvent gone;
  gone.mutable_rank_gone()->set_registration_id(99);
  session_->Send(gone);
  coordinator_.emplace(TinySpec(), port);
  ASSERT_TRUE(coordinator_->Await([](const std::vector<v1::AgentEvent>& events) {
    return std::any_of(events.begin(), events.end(),
                       [](const v1::AgentEvent& event) { return event.has_rank_gone(); });
  }));
  for (const v1::AgentEvent& event : coordinator_->events()) EXPECT_FALSE(event.has_step_result());
}

TEST_F(CoordinatorSessionTest, HandsOnCommandsAndSaysGoodbye) {
  coordinator_.emplace(TinySpec());
  Start(coordinator_->address());
  ASSERT_TRUE(coordinator_->Await(
      [](const std::vector<v1::AgentEvent>& events) { return events.size() >= 2; }));
  v1::AgentCommand command;
  command.mutable_step()->set_sync_id(17);
  coordinator_->Command(command);
  ASSERT_TRUE(handler_.Await([&] { return !handler_.commands_.empty(); }));
  EXPECT_EQ(handler_.commands_[0].step().sync_id(), 17u);
  const absl::Time start = absl::Now();
  session_->Stop("signal 15");
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  ASSERT_TRUE(coordinator_->Await([](const std::vector<v1::AgentEvent>& events) {
    return events.back().has_goodbye() && events.back().goodbye().reason() == "signal 15";
  }));
}

}  // namespace
}  // namespace xfer
