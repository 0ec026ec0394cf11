// A coordinator that ends and begins again with the same state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/unit/coordinator/coordinator_fixture.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

class RestartTest : public CoordinatorTest {
 protected:
  RestartTest()
      : directory_(absl::StrCat(::testing::TempDir(), "/xfer-coordinator-", getpid())),
        state_(directory_ + "/state.db") {
    std::filesystem::create_directories(directory_);
    Begin(state_);
  }
  ~RestartTest() override {
    End();
    std::filesystem::remove_all(directory_);
  }

  void Begin(const std::string& state) {
    coordinator_.reset();
    Coordinator::Options options;
    options.lease = kPatience;
    options.state = state;
    StartCoordinator(options);
  }
  void End() {
    a_.reset();
    b_.reset();
    coordinator_.reset();
  }
  v1::EngineInfo Engine() {
    v1::ListEnginesRequest request;
    request.set_job("job");
    v1::ListEnginesReply reply;
    EXPECT_TRUE(Call(&v1::Coordinator::Stub::ListEngines, request, &reply).ok());
    return reply.engines_size() == 1 ? reply.engines(0) : v1::EngineInfo();
  }
  v1::Sync Get(uint64_t id) {
    v1::GetSyncRequest request;
    request.set_sync_id(id);
    v1::Sync sync;
    EXPECT_TRUE(Call(&v1::Coordinator::Stub::GetSync, request, &sync).ok());
    return sync;
  }

  const std::string directory_;
  const std::string state_;
};

TEST_F(RestartTest, NothingAcknowledgedIsLost) {
  Populate();
  const v1::Sync before = Run();
  EXPECT_EQ(before.state(), v1::SYNC_STATE_DONE);
  EXPECT_EQ(Engine().version(), 1);
  End();
  Begin(state_);

  EXPECT_EQ(Get(before.id()).SerializeAsString(), before.SerializeAsString());
  Populate();  // the agents publish the same registrations again; the job is the same
  EXPECT_EQ(Engine().version(), 1);
  EXPECT_FALSE(Engine().dirty());
  const v1::Sync after = Run();
  EXPECT_EQ(after.state(), v1::SYNC_STATE_DONE);
  EXPECT_GT(after.id(), before.id());
}

TEST_F(RestartTest, AnEngineWhoseRanksAreOthersHasNoVersion) {
  Populate();
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_DONE);
  End();
  Begin(state_);
  b_ = Agent("b");
  ASSERT_TRUE(b_->Await(v1::AgentCommand::kWelcome).has_value());
  v1::ManifestHeader header = b_->Header("job", kRollout, manifest_);
  header.set_registration_id(2);
  ASSERT_TRUE(b_->Publish(header, manifest_).ok());
  EXPECT_EQ(Engine().version(), 0);
}

TEST_F(RestartTest, ASyncThatTheEndCutOffHasFailedAndItsEngineIsDirty) {
  Populate();
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_DONE);
  // What is on the disk while bytes move is what kill -9 would leave.
  const std::string copy = directory_ + "/copy.db";
  b_->Behave([&](const v1::Step& step, v1::StepResult good) {
    if (step.kind() == v1::STEP_KIND_TRANSFER) {
      for (const char* file : {"", "-wal"}) {
        std::filesystem::copy_file(absl::StrCat(state_, file), absl::StrCat(copy, file));
      }
    }
    return good;
  });
  const v1::Sync cut = Run();
  EXPECT_EQ(cut.state(), v1::SYNC_STATE_DONE);
  End();
  Begin(copy);
  EXPECT_TRUE(Engine().dirty());
  EXPECT_THAT(Engine().dirty_reason(), HasSubstr(absl::StrCat("sync ", cut.id())));
  EXPECT_EQ(Get(cut.id()).state(), v1::SYNC_STATE_FAILED);
  EXPECT_THAT(Get(cut.id()).outcome().message(), HasSubstr("the coordinator ended"));
  Populate();
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_DONE) << "the next sync repairs it";
  EXPECT_FALSE(Engine().dirty());
}

}  // namespace
}  // namespace xfer
