// Syncs that go wrong: every phase, every way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "tests/unit/coordinator/sync_fixture.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Answer = std::optional<v1::StepResult>;

class SyncFailureTest : public SyncFixture {
 protected:
  // `node` says of `kind` what `answer` makes of the good answer; all else goes well.
  void At(const std::string& node, v1::StepKind kind,
          std::function<Answer(const v1::Step&, v1::StepResult)> answer) {
    agents_.Behave([node, kind, answer](const std::string& n, const v1::Step& step,
                                        v1::StepResult good) -> Answer {
      if (n != node || step.kind() != kind) return good;
      return answer(step, std::move(good));
    });
  }
  static v1::StepResult Failed(v1::StepResult result, const std::string& message) {
    *result.mutable_outcome() = ToOutcome(absl::AbortedError(message));
    return result;
  }
};

TEST_F(SyncFailureTest, AnEngineThatCannotPauseIsLeftOutAndNotDirty) {
  At("e0", v1::STEP_KIND_PAUSE, [](const v1::Step&, v1::StepResult good) {
    *good.add_ranks() = OutcomeOf({Role::kRollout, 0, 1}, absl::AbortedError("busy"));
    return Failed(good, "a rank failed");
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_EQ(sync.outcome().message(), "node e0, engine 0 rank 1: busy");
  EXPECT_FALSE(sync.engines(0).committed());
  EXPECT_TRUE(sync.engines(1).committed());
  EXPECT_FALSE(Engine(0).dirty());
  EXPECT_EQ(Engine(1).version(), 1);
  // It is told to go on with what it has, and the rest starts again without it.
  const v1::Step resume = *agents_.Find("e0", v1::STEP_KIND_RESUME);
  EXPECT_FALSE(resume.success());
  EXPECT_EQ(resume.failed_size(), 0);
  EXPECT_NE(agents_.Find("e1", v1::STEP_KIND_TRANSFER)->sync_id(), resume.sync_id());
  EXPECT_THAT(agents_.TakeLog(),
              ElementsAre("CONNECT e0 e1 t", "PAUSE e0 e1 t", "RESUME e0 e1 t", "CONNECT e1 t",
                          "PAUSE e1 t", "TRANSFER e1 t", "COMMIT e1", "RESUME e1 t"));
}

TEST_F(SyncFailureTest, TimingsReachASyncThatStartedAgain) {
  At("e0", v1::STEP_KIND_PAUSE,
     [](const v1::Step&, v1::StepResult good) { return Failed(good, "busy"); });
  const v1::Sync sync = Run();
  v1::TransferTimings timings;
  timings.set_sync_id(agents_.Find("t", v1::STEP_KIND_TRANSFER)->sync_id());
  timings.add_transfers();
  ASSERT_NE(timings.sync_id(), sync.id());
  ASSERT_TRUE(runner_->AddTimings(timings).ok());
  EXPECT_EQ((*runner_->history().Find(sync.id()))->Timings().size(), 1u);
}

TEST_F(SyncFailureTest, ATrainerThatCannotHoldFailsTheSyncAndDirtiesNothing) {
  At("t", v1::STEP_KIND_PAUSE, [](const v1::Step&, v1::StepResult good) {
    *good.add_ranks() = OutcomeOf({Role::kTrainer, 0, 1}, absl::AbortedError("optimizer step"));
    return good;
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_FAILED);
  EXPECT_EQ(sync.outcome().message(), "node t, trainer 1: optimizer step");
  EXPECT_FALSE(Engine(0).dirty());
  EXPECT_FALSE(Engine(1).dirty());
  EXPECT_THAT(agents_.TakeLog(), ElementsAre("CONNECT e0 e1 t", "PAUSE e0 e1 t", "RESUME e0 e1 t"));
}

TEST_F(SyncFailureTest, ConnectFailureOfOneEngineLeavesTheOther) {
  At("e1", v1::STEP_KIND_CONNECT,
     [](const v1::Step&, v1::StepResult good) { return Failed(good, "no route"); });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_EQ(sync.engines(1).outcome().message(), "node e1: no route");
  EXPECT_TRUE(sync.engines(0).committed());
  EXPECT_FALSE(Engine(1).dirty());
}

TEST_F(SyncFailureTest, ConnectFailureOfTheTrainersNodeFailsAll) {
  At("t", v1::STEP_KIND_CONNECT,
     [](const v1::Step&, v1::StepResult good) { return Failed(good, "no route"); });
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_FAILED);
  EXPECT_THAT(agents_.TakeLog(), ElementsAre("CONNECT e0 e1 t"));
}

TEST_F(SyncFailureTest, AFailedTransferDirtiesItsEngineAndTheNextSyncRepairsIt) {
  At("e0", v1::STEP_KIND_TRANSFER, [](const v1::Step&, v1::StepResult good) {
    *good.mutable_ranks(1)->mutable_outcome() = ToOutcome(absl::DataLossError("digest differs"));
    v1::TransferFailure* failure = good.add_failures();
    failure->set_transfer(0);
    *failure->mutable_source() = ToProto(RankId{Role::kTrainer, 0, 1});
    *failure->mutable_destination() = ToProto(RankId{Role::kRollout, 0, 1});
    failure->set_source_node("t");
    failure->set_destination_node("e0");
    *failure->mutable_outcome() = ToOutcome(absl::DataLossError("digest differs"));
    *good.add_failures() = *failure;  // the other end's report of the same
    return Failed(good, "1 transfer failed");
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  const v1::EngineResult& engine = sync.engines(0);
  EXPECT_FALSE(engine.committed());
  EXPECT_EQ(engine.failure_count(), 1);
  ASSERT_EQ(engine.failures_size(), 1);
  EXPECT_THAT(engine.failures(0).tensor(), HasSubstr("model."));
  EXPECT_EQ(engine.outcome().code(), static_cast<int>(absl::StatusCode::kDataLoss));
  for (const char* part :
       {"node e0", "model.", "trainer 1 on node t", "engine 0 rank 1", "digest differs"}) {
    EXPECT_THAT(engine.outcome().message(), HasSubstr(part));
  }
  EXPECT_TRUE(Engine(0).dirty());
  EXPECT_THAT(Engine(0).dirty_reason(), HasSubstr("digest differs"));
  EXPECT_EQ(Engine(0).version(), 0);
  EXPECT_TRUE(sync.engines(1).committed());
  EXPECT_FALSE(Engine(1).dirty());
  const v1::Step resume = *agents_.Find("e0", v1::STEP_KIND_RESUME);
  EXPECT_FALSE(resume.success());
  EXPECT_EQ(resume.failed_size(), 2) << "all of the engine's ranks: all or nothing";
  EXPECT_TRUE(agents_.Find("e1", v1::STEP_KIND_RESUME)->success());
  agents_.TakeLog();

  agents_.Behave(nullptr);
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_DONE);
  EXPECT_FALSE(Engine(0).dirty());
  EXPECT_EQ(Engine(0).version(), 1);
  EXPECT_THAT(agents_.TakeLog().front(), "CONNECT e0 e1 t") << "connections are in doubt";
}

TEST_F(SyncFailureTest, ADirtyEngineStaysDirtyThroughASyncThatDoesNotReachIt) {
  ASSERT_TRUE(registry_.MarkDirty("job", {{0, "before"}}).ok());
  At("e0", v1::STEP_KIND_PAUSE,
     [](const v1::Step&, v1::StepResult good) { return Failed(good, "busy"); });
  Run();
  EXPECT_TRUE(Engine(0).dirty());
  EXPECT_EQ(Engine(0).dirty_reason(), "before");
  EXPECT_EQ(agents_.Find("e0", v1::STEP_KIND_RESUME)->failed_size(), 2);
}

TEST_F(SyncFailureTest, SilenceAboutARankIsNoProof) {
  At("e1", v1::STEP_KIND_TRANSFER, [](const v1::Step&, v1::StepResult good) {
    good.mutable_ranks()->RemoveLast();
    return good;
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_THAT(sync.engines(1).outcome().message(),
              HasSubstr("node e1 does not say whether the bytes of engine 1 rank 1"));
  EXPECT_TRUE(Engine(1).dirty());
}

TEST_F(SyncFailureTest, ASendersFailureWithoutDetailFailsWhomItServes) {
  At("t", v1::STEP_KIND_TRANSFER,
     [](const v1::Step&, v1::StepResult good) { return Failed(good, "no memory"); });
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_FAILED);
  EXPECT_TRUE(Engine(0).dirty());
  EXPECT_TRUE(Engine(1).dirty());
}

TEST_F(SyncFailureTest, APostLoadHookThatFailsLeavesItsEngineDirty) {
  At("e1", v1::STEP_KIND_COMMIT, [](const v1::Step&, v1::StepResult good) {
    *good.add_ranks() = OutcomeOf({Role::kRollout, 1, 0}, absl::InternalError("hook"));
    return good;
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_TRUE(sync.engines(0).committed());
  EXPECT_TRUE(Engine(1).dirty());
  EXPECT_EQ(agents_.Find("e1", v1::STEP_KIND_RESUME)->failed_size(), 2);
}

TEST_F(SyncFailureTest, AFailedResumeIsToldThoughTheVersionStands) {
  At("e1", v1::STEP_KIND_RESUME,
     [](const v1::Step&, v1::StepResult good) { return Failed(good, "stuck"); });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_EQ(sync.outcome().message(), "resume: node e1: stuck");
  EXPECT_TRUE(sync.engines(1).committed());
  EXPECT_EQ(sync.engines(1).outcome().message(), "resume: node e1: stuck");
  EXPECT_EQ(sync.engines(0).outcome().code(), 0);
  EXPECT_EQ(Engine(1).version(), 1);
}

TEST_F(SyncFailureTest, ACommitForARankThatWasRegisteredAnewIsRefused) {
  At("e1", v1::STEP_KIND_COMMIT, [&](const v1::Step&, v1::StepResult good) {
    Publish(SmallRollout(1, 0, 2, "e1", 2));
    return good;
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_THAT(sync.engines(1).outcome().message(), HasSubstr("engine 1 rank 0"));
  EXPECT_EQ(Engine(1).version(), 0);
}

struct LossCase {
  std::string node;
  v1::StepKind kind;
  v1::SyncState state;
  bool dirty0;
  bool dirty1;
};

class NodeLossTest : public SyncFailureTest, public ::testing::WithParamInterface<LossCase> {};

TEST_P(NodeLossTest, EndsAtOnceAndNamesTheNode) {
  const LossCase& c = GetParam();
  At(c.node, c.kind, [&](const v1::Step&, const v1::StepResult&) -> Answer {
    agents_.CloseSession(c.node);
    runner_->OnNodeLost(c.node, 7, "lease expired");
    registry_.DropNode(c.node, 7, "lease expired");
    return std::nullopt;
  });
  const absl::Time start = absl::Now();
  const v1::Sync sync = Run();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5)) << "the deadline is 10 s";
  EXPECT_EQ(sync.state(), c.state) << sync.outcome().message();
  EXPECT_THAT(sync.outcome().message(), HasSubstr("node " + c.node));
  EXPECT_THAT(sync.outcome().message(), HasSubstr("lease expired"));
  EXPECT_EQ(Engine(0).dirty(), c.dirty0);
  EXPECT_EQ(Engine(1).dirty(), c.dirty1);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, NodeLossTest,
    ::testing::Values(LossCase{"e0", v1::STEP_KIND_CONNECT, v1::SYNC_STATE_PARTIAL, false, false},
                      LossCase{"t", v1::STEP_KIND_CONNECT, v1::SYNC_STATE_FAILED, false, false},
                      LossCase{"e0", v1::STEP_KIND_PAUSE, v1::SYNC_STATE_PARTIAL, false, false},
                      LossCase{"t", v1::STEP_KIND_PAUSE, v1::SYNC_STATE_FAILED, false, false},
                      LossCase{"e0", v1::STEP_KIND_TRANSFER, v1::SYNC_STATE_PARTIAL, true, false},
                      LossCase{"t", v1::STEP_KIND_TRANSFER, v1::SYNC_STATE_FAILED, true, true},
                      LossCase{"e0", v1::STEP_KIND_COMMIT, v1::SYNC_STATE_PARTIAL, true, false},
                      LossCase{"e0", v1::STEP_KIND_RESUME, v1::SYNC_STATE_PARTIAL, false, false},
                      LossCase{"t", v1::STEP_KIND_RESUME, v1::SYNC_STATE_PARTIAL, false, false}));

TEST_F(SyncFailureTest, ABrokenSessionFailsItsEnginesButIsResumedWhenItComesBack) {
  absl::Notification broken;
  At("e0", v1::STEP_KIND_TRANSFER, [&](const v1::Step&, const v1::StepResult&) -> Answer {
    agents_.CloseSession("e0");
    runner_->OnSessionBroken("e0", 7, "reset by peer");
    broken.Notify();
    return std::nullopt;
  });
  v1::TriggerSyncRequest request = Request(3'000);
  const uint64_t id = *runner_->Trigger(request);
  ASSERT_TRUE(broken.WaitForNotificationWithTimeout(absl::Seconds(10)));
  agents_.OpenSession("e0", 2);
  runner_->OnSessionOpened("e0", 7);
  const v1::Sync sync = Wait(id);
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_THAT(sync.engines(0).outcome().message(),
              AllOf(HasSubstr("node e0"), HasSubstr("transfer"), HasSubstr("reset by peer")));
  EXPECT_TRUE(sync.engines(1).committed());
  const std::optional<v1::Step> resume = agents_.Find("e0", v1::STEP_KIND_RESUME);
  ASSERT_TRUE(resume.has_value());
  EXPECT_EQ(resume->failed_size(), 2);
}

TEST_F(SyncFailureTest, ResumeWaitsForASessionUntilTheNodeIsLost) {
  At("e0", v1::STEP_KIND_RESUME, [&](const v1::Step&, const v1::StepResult&) -> Answer {
    agents_.CloseSession("e0");
    runner_->OnSessionBroken("e0", 7, "reset by peer");
    runner_->OnNodeLost("e0", 7, "lease expired");
    return std::nullopt;
  });
  const absl::Time start = absl::Now();
  const v1::Sync sync = Run();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(sync.engines(0).committed());
  EXPECT_THAT(sync.engines(0).outcome().message(), HasSubstr("was lost during resume"));
}

TEST_F(SyncFailureTest, ARankThatGoesFailsItsEngineOnly) {
  At("e0", v1::STEP_KIND_TRANSFER, [&](const v1::Step&, v1::StepResult good) {
    registry_.DropRank("job", {Role::kRollout, 0, 1}, "e0", 7, 1, "killed");
    return good;
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL);
  EXPECT_THAT(sync.engines(0).outcome().message(),
              AllOf(HasSubstr("engine 0 rank 1"), HasSubstr("killed")));
  EXPECT_TRUE(Engine(0).dirty());
}

TEST_F(SyncFailureTest, ATrainerThatGoesFailsAll) {
  At("e0", v1::STEP_KIND_TRANSFER, [&](const v1::Step&, v1::StepResult) -> Answer {
    registry_.DropRank("job", {Role::kTrainer, 0, 0}, "t", 7, 1, "killed");
    return std::nullopt;
  });
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_FAILED);
}

TEST_F(SyncFailureTest, ASilentAgentCostsItsEngineTheDeadlineAndNobodyElseTheirCommit) {
  At("e0", v1::STEP_KIND_TRANSFER,
     [](const v1::Step&, const v1::StepResult&) -> Answer { return std::nullopt; });
  const absl::Time start = absl::Now();
  const v1::Sync sync = Run(Request(2'000));
  const absl::Duration took = absl::Now() - start;
  EXPECT_GT(took, absl::Milliseconds(1700));
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_PARTIAL) << sync.outcome().message();
  EXPECT_EQ(sync.outcome().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(sync.outcome().message(), HasSubstr("node e0 did not answer transfer"));
  EXPECT_TRUE(sync.engines(1).committed()) << sync.engines(1).outcome().message();
  EXPECT_TRUE(Engine(0).dirty());
}

TEST_F(SyncFailureTest, EndsWithinDeadlineAndGraceThoughNobodyAnswersAnything) {
  for (const v1::StepKind from :
       {v1::STEP_KIND_CONNECT, v1::STEP_KIND_PAUSE, v1::STEP_KIND_TRANSFER, v1::STEP_KIND_COMMIT,
        v1::STEP_KIND_RESUME}) {
    agents_.Behave([from](const std::string&, const v1::Step& step, v1::StepResult good) -> Answer {
      if (step.kind() >= from) return std::nullopt;
      return good;
    });
    Publish(SmallTrainer(0, 2, "t", 10 + static_cast<uint64_t>(from)));  // CONNECT comes again
    const v1::Sync sync = Run(Request(200));
    // 0.5 s, and room for a busy machine.
    EXPECT_LT(sync.total_ns(), 5'000'000'000) << v1::StepKind_Name(from);
    EXPECT_NE(sync.state(), v1::SYNC_STATE_RUNNING);
    EXPECT_NE(sync.state(), v1::SYNC_STATE_DONE);
    EXPECT_EQ(Engine(0).running_sync(), 0u);
  }
}

TEST_F(SyncFailureTest, CancelEndsItResumesAndLeavesDirty) {
  absl::Notification moving;
  At("e0", v1::STEP_KIND_TRANSFER, [&](const v1::Step&, const v1::StepResult&) -> Answer {
    moving.Notify();
    return std::nullopt;
  });
  const uint64_t id = *runner_->Trigger(Request());
  ASSERT_TRUE(moving.WaitForNotificationWithTimeout(absl::Seconds(10)));
  // Meanwhile the engines are taken.
  EXPECT_THAT(std::string(runner_->Trigger(Request()).status().message()),
              HasSubstr(absl::StrCat("sync ", id, " is running on engine 0")));
  ASSERT_TRUE(runner_->Cancel(id, absl::CancelledError("by hand")).ok());
  const v1::Sync sync = Wait(id);
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_CANCELLED);
  EXPECT_EQ(sync.outcome().message(), "by hand");
  EXPECT_TRUE(Engine(0).dirty());
  EXPECT_TRUE(Engine(1).dirty());
  EXPECT_THAT(agents_.TakeLog().back(), "RESUME e0 e1 t");
  EXPECT_EQ(agents_.ended().at({"e0", id}), "by hand");
  EXPECT_TRUE(runner_->Cancel(id, absl::CancelledError("again")).ok());
}

TEST_F(SyncFailureTest, CancelBeforeTheFirstByteDirtiesNothing) {
  absl::Notification pausing;
  At("e0", v1::STEP_KIND_PAUSE, [&](const v1::Step&, const v1::StepResult&) -> Answer {
    pausing.Notify();
    return std::nullopt;
  });
  const uint64_t id = *runner_->Trigger(Request());
  ASSERT_TRUE(pausing.WaitForNotificationWithTimeout(absl::Seconds(10)));
  ASSERT_TRUE(runner_->Cancel(id, absl::CancelledError("by hand")).ok());
  EXPECT_EQ(Wait(id).state(), v1::SYNC_STATE_CANCELLED);
  EXPECT_FALSE(Engine(0).dirty());
}

TEST_F(SyncFailureTest, LateAndForeignAnswersAreIgnored) {
  At("e0", v1::STEP_KIND_PAUSE, [&](const v1::Step& step, v1::StepResult good) {
    v1::StepResult wrong = Failed(good, "not me");
    wrong.set_kind(v1::STEP_KIND_TRANSFER);
    runner_->OnStepResult("e0", 7, wrong);  // another step
    wrong = Failed(good, "not me");
    runner_->OnStepResult("e0", 6, wrong);  // another incarnation
    runner_->OnStepResult("elsewhere", 7, wrong);
    wrong.set_sync_id(step.sync_id() + 1);
    runner_->OnStepResult("e0", 7, wrong);
    return good;
  });
  EXPECT_EQ(Run().state(), v1::SYNC_STATE_DONE);
}

TEST_F(SyncFailureTest, ShutdownCancelsResumesAndRefuses) {
  absl::Notification moving;
  agents_.Behave([&](const std::string& node, const v1::Step& step, v1::StepResult good) -> Answer {
    if (step.kind() != v1::STEP_KIND_TRANSFER || node != "e0") return good;
    moving.Notify();
    return std::nullopt;
  });
  const uint64_t id = *runner_->Trigger(Request());
  ASSERT_TRUE(moving.WaitForNotificationWithTimeout(absl::Seconds(10)));
  runner_->Shutdown(absl::UnavailableError("ending"), absl::Seconds(1));
  EXPECT_EQ((*runner_->history().Find(id))->Snapshot().state(), v1::SYNC_STATE_CANCELLED);
  EXPECT_THAT(agents_.TakeLog().back(), "RESUME e0 e1 t");
  EXPECT_EQ(runner_->Trigger(Request()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SyncFailureTest, EventsMayComeFromManyThreadsAtAnyTime) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> noise;
  for (int i = 0; i < 3; ++i) {
    noise.emplace_back([&, i] {
      v1::Progress progress;
      v1::StepResult result;
      for (uint64_t n = 0; !stop; ++n) {
        progress.set_sync_id(n % 20);
        progress.set_bytes_done(n);
        runner_->OnProgress("e0", progress);
        result.set_sync_id(n % 20);
        result.set_kind(v1::STEP_KIND_COMMIT);
        if (i == 1) runner_->OnStepResult("t", 7, result);
        if (i == 2) runner_->OnSessionOpened("e1", 7);
        std::this_thread::yield();
      }
    });
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Run().state(), v1::SYNC_STATE_DONE);
  stop = true;
  for (std::thread& thread : noise) thread.join();
}

}  // namespace
}  // namespace xfer
