// What goes wrong in a sync, and what becomes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/status.h"
#include "tests/unit/agent/exec/test_cluster.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBytes = 4 * kMiB;

absl::StatusCode CodeOf(const v1::Outcome& outcome) {
  return static_cast<absl::StatusCode>(outcome.code());
}

// One trainer on node a; engines 0 and 1 with one rank each on node b. Engine 0's transfers come
// first.
class ExecutorFailureTest : public testing::Test {
 protected:
  void Build(const FaultPlan& faults = {}, int transfers = 4) {
    cluster_.AddNode("a", faults);
    cluster_.AddNode("bb");
    trainer_ = cluster_.AddRank("a", {Role::kTrainer, 0, 0}, kBytes);
    engines_ = {cluster_.AddRank("bb", {Role::kRollout, 0, 0}, kBytes),
                cluster_.AddRank("bb", {Role::kRollout, 1, 0}, kBytes)};
    const uint64_t bytes = kBytes / transfers;
    for (int engine : engines_) {
      for (int i = 0; i < transfers; ++i) cluster_.AddTransfer(trainer_, engine, i * bytes, bytes);
    }
    cluster_.Publish(1);
  }

  void Prepare(uint64_t sync_id) {
    for (v1::StepKind kind : {v1::STEP_KIND_CONNECT, v1::STEP_KIND_PAUSE}) {
      for (const auto& [name, result] : cluster_.RunStep(cluster_.MakeStep(sync_id, kind))) {
        ASSERT_EQ(result.outcome().code(), 0) << name << ": " << result.outcome().message();
      }
    }
  }

  bool Equal(int engine) {
    return memcmp(cluster_.rank(engines_[engine]).bytes.data(),
                  cluster_.rank(trainer_).bytes.data(), kBytes) == 0;
  }
  // The receiver's verdict on an engine's rank.
  static v1::Outcome Verdict(const v1::StepResult& result, int engine) {
    for (const v1::RankOutcome& rank : result.ranks()) {
      if (rank.id().engine() == engine && rank.id().role() == v1::ROLE_ROLLOUT)
        return rank.outcome();
    }
    ADD_FAILURE() << "no verdict on engine " << engine;
    return {};
  }
  TestNode& a() { return cluster_.node("a"); }
  TestNode& b() { return cluster_.node("bb"); }
  void EndSync(uint64_t sync_id, const std::string& reason) {
    v1::EndSync end;
    end.set_sync_id(sync_id);
    end.set_reason(reason);
    a().executor->HandleEndSync(end);
    b().executor->HandleEndSync(end);
  }

  TestCluster cluster_;
  int trainer_ = 0;
  std::vector<int> engines_;
};

TEST_F(ExecutorFailureTest, DamageFailsOneEngineOnly) {
  FaultPlan faults;
  faults.corrupt_range = 1;
  Build(faults);
  Prepare(1);
  auto results = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  int failed = -1;
  for (int engine : {0, 1}) {
    if (Verdict(results["bb"], engine).code() != 0) {
      EXPECT_EQ(failed, -1);
      failed = engine;
    } else {
      EXPECT_TRUE(Equal(engine));
    }
  }
  ASSERT_NE(failed, -1);
  EXPECT_EQ(CodeOf(Verdict(results["bb"], failed)), absl::StatusCode::kDataLoss);
  for (const std::string name : {"a", "bb"}) {
    ASSERT_GE(results[name].failures_size(), 1) << name;
    const v1::TransferFailure& failure = results[name].failures(0);
    EXPECT_EQ(failure.source_node(), "a");
    EXPECT_EQ(failure.destination_node(), "bb");
    EXPECT_EQ(failure.destination().engine(), failed);
    EXPECT_THAT(failure.tensor(), HasSubstr("tensor."));
    // The damaged transfer itself, or one that was given up for it and says so.
    EXPECT_THAT(failure.outcome().message(), HasSubstr("the bytes were damaged on the way"));
    EXPECT_NE(results[name].outcome().code(), 0);
  }
  // The failed engine's rank does not take the version, whoever asks; the other one does.
  auto committed = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_COMMIT));
  ASSERT_EQ(committed["bb"].ranks_size(), 1);
  EXPECT_EQ(committed["bb"].ranks(0).id().engine(), failed);
  // And it is told so.
  v1::Step resume = cluster_.MakeStep(1, v1::STEP_KIND_RESUME);
  v1::RankId* dirty = resume.add_failed();
  dirty->set_role(v1::ROLE_ROLLOUT);
  dirty->set_engine(failed);
  cluster_.RunStep(resume);
  for (const HookOrder& call : b().hooks.calls()) {
    if (call.hook != HookKind::kResume) continue;
    EXPECT_EQ(call.outcome.ok(),
              call.registration_id != cluster_.rank(engines_[failed]).registration_id);
    if (!call.outcome.ok()) {
      EXPECT_THAT(std::string(call.outcome.message()), HasSubstr("digest"));
    }
  }
  EndSync(1, "");
  // The next sync repairs it.
  cluster_.RunSync(2);
  EXPECT_TRUE(Equal(0));
  EXPECT_TRUE(Equal(1));
}

TEST_F(ExecutorFailureTest, LostBytesAreNoticed) {
  FaultPlan faults;
  faults.drop_range = 2;
  Build(faults);
  Prepare(1);
  auto results = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  EXPECT_EQ(CodeOf(results["bb"].outcome()), absl::StatusCode::kDataLoss);
  EXPECT_THAT(results["bb"].outcome().message(), HasSubstr("bytes did not arrive"));
  EXPECT_NE(Verdict(results["bb"], 0).code() != 0, Verdict(results["bb"], 1).code() != 0);
}

TEST_F(ExecutorFailureTest, AFailedWriteFailsItsEngine) {
  FaultPlan faults;
  faults.fail_range = 3;
  Build(faults);
  Prepare(1);
  auto results = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  EXPECT_EQ(CodeOf(results["a"].outcome()), absl::StatusCode::kUnavailable);
  EXPECT_NE(Verdict(results["bb"], 0).code() != 0, Verdict(results["bb"], 1).code() != 0);
}

TEST_F(ExecutorFailureTest, ABrokenConnectionIsTakenUpAgain) {
  FaultPlan faults;
  faults.break_at_range = 5;
  Build(faults, 16);
  Prepare(1);
  auto results = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  for (const auto& [name, result] : results) {
    EXPECT_EQ(result.outcome().code(), 0) << name << ": " << result.outcome().message();
  }
  EXPECT_TRUE(Equal(0));
  EXPECT_TRUE(Equal(1));
  ASSERT_EQ(results["a"].timings_size(), 1);
  EXPECT_GE(results["a"].timings(0).retries(), 1u);
}

TEST_F(ExecutorFailureTest, StalePlansAreRefused) {
  Build();
  RankTable& table = *b().ranks;
  const RankPin old = table.Find(cluster_.rank(engines_[1]).registration_id);
  std::vector<MappedRegion> regions;
  regions.push_back(std::move(MakeTestRegion(kBytes).agent));
  ASSERT_TRUE(table.Replace(old->registration_id(), old->info(), std::move(regions), 0).ok());
  auto results = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_CONNECT));
  EXPECT_EQ(CodeOf(results["bb"].outcome()), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(results["bb"].outcome().message(), HasSubstr("stale plan: engine 1 rank 0"));
  EXPECT_EQ(results["a"].outcome().code(), 0);
  table.Remove(table.Find("job", {Role::kRollout, 1, 0})->registration_id());
  auto gone = cluster_.RunStep(cluster_.MakeStep(2, v1::STEP_KIND_CONNECT));
  EXPECT_THAT(gone["bb"].outcome().message(), HasSubstr("not registered"));
}

TEST_F(ExecutorFailureTest, PlansOutsideTheRegionsAreRefused) {
  Build();
  cluster_.transfers[0].copies[0].destination_offset = kBytes - 1;
  cluster_.Publish(2);
  auto results = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_CONNECT));
  EXPECT_EQ(CodeOf(results["bb"].outcome()), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(results["bb"].outcome().message(), HasSubstr("tensor.0 from trainer 0 (node a)"));
  cluster_.transfers[0].copies[0].destination_offset = 0;
  cluster_.transfers[0].destination_region = 1;
  cluster_.Publish(3);
  results = cluster_.RunStep(cluster_.MakeStep(2, v1::STEP_KIND_CONNECT));
  EXPECT_THAT(results["bb"].outcome().message(), HasSubstr("region 1 of engine 0 rank 0"));
}

TEST_F(ExecutorFailureTest, ARestartedPeerIsRefused) {
  Build();
  v1::Step step = cluster_.MakeStep(1, v1::STEP_KIND_CONNECT);
  for (v1::Peer& peer : *step.mutable_peers()) {
    if (peer.node() == "bb") peer.set_incarnation(peer.incarnation() + 1);
  }
  cluster_.SendStep("a", step);
  const v1::StepResult result = a().link.Await(1, v1::STEP_KIND_CONNECT);
  EXPECT_EQ(CodeOf(result.outcome()), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(result.outcome().message(), HasSubstr("restarted"));
}

TEST_F(ExecutorFailureTest, HooksHaveADeadline) {
  Build();
  cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_CONNECT));
  b().hooks.SetAnswer([&](const HookOrder& order) -> std::optional<absl::Status> {
    if (order.hook != HookKind::kPause) return absl::OkStatus();
    if (order.registration_id == cluster_.rank(engines_[0]).registration_id) return std::nullopt;
    return absl::InternalError("cannot pause");
  });
  const absl::Time start = absl::Now();
  auto results =
      cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_PAUSE, absl::Milliseconds(300)));
  EXPECT_GT(absl::Now() - start, absl::Milliseconds(200));
  ASSERT_EQ(results["bb"].ranks_size(), 2);
  EXPECT_EQ(CodeOf(results["bb"].ranks(0).outcome()), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(results["bb"].ranks(0).outcome().message(),
              HasSubstr("the pause hook of engine 0 rank 0 (node bb, process 101)"));
  EXPECT_THAT(results["bb"].ranks(1).outcome().message(), HasSubstr("cannot pause"));
  // Both are resumed in the end: nobody knows whether they have paused.
  EndSync(1, "a hook failed");
  EXPECT_TRUE(b().hooks.AwaitCalls(HookKind::kResume, 2));
  EXPECT_TRUE(a().hooks.AwaitCalls(HookKind::kRelease, 1));
  EXPECT_THAT(std::string(b().hooks.calls().back().outcome.message()), HasSubstr("a hook failed"));
}

TEST_F(ExecutorFailureTest, MissingBytesHaveADeadline) {
  Build();
  Prepare(1);
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER, absl::Milliseconds(300)));
  const absl::Time start = absl::Now();
  const v1::StepResult result = b().link.Await(1, v1::STEP_KIND_TRANSFER);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(CodeOf(result.outcome()), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(result.outcome().message(), HasSubstr("4 of 4 transfers to engine"));
  EXPECT_NE(Verdict(result, 0).code(), 0);
  EXPECT_NE(Verdict(result, 1).code(), 0);
  ASSERT_EQ(result.failures_size(), 2);
}

TEST_F(ExecutorFailureTest, TheEndCutsATransferShort) {
  Build();
  Prepare(1);
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  EndSync(1, "cancelled by a person");
  const v1::StepResult result = b().link.Await(1, v1::STEP_KIND_TRANSFER, absl::Seconds(5));
  EXPECT_EQ(CodeOf(result.outcome()), absl::StatusCode::kCancelled);
  EXPECT_THAT(result.outcome().message(), HasSubstr("cancelled by a person"));
  EXPECT_TRUE(b().hooks.AwaitCalls(HookKind::kResume, 2));
  // Nothing of it is accepted any more.
  EXPECT_FALSE(b().receive.For("local")->Enter({1, 1001}, 10).ok());
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_COMMIT));
  EXPECT_EQ(CodeOf(b().link.Await(1, v1::STEP_KIND_COMMIT).outcome()),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ExecutorFailureTest, ResumeCutsATransferShort) {
  Build();
  Prepare(1);
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  v1::Step resume = cluster_.MakeStep(1, v1::STEP_KIND_RESUME);
  resume.set_success(false);
  cluster_.SendStep("bb", resume);
  EXPECT_EQ(b().link.Await(1, v1::STEP_KIND_RESUME, absl::Seconds(5)).outcome().code(), 0);
  EXPECT_EQ(b().link.answers(1, v1::STEP_KIND_TRANSFER), 1);
  ASSERT_TRUE(b().hooks.AwaitCalls(HookKind::kResume, 2));
  EXPECT_FALSE(b().hooks.calls().back().outcome.ok());
}

TEST_F(ExecutorFailureTest, AfterABrokenSessionOnlyResumeIsLeft) {
  Build();
  Prepare(1);
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  b().executor->SessionBroken(absl::UnavailableError("session broke"));
  b().link.Await(1, v1::STEP_KIND_TRANSFER, absl::Seconds(5));
  EXPECT_FALSE(b().receive.For("local")->Enter({1, 1001}, 10).ok());
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_COMMIT));
  EXPECT_NE(b().link.Await(1, v1::STEP_KIND_COMMIT).outcome().code(), 0);
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_RESUME));
  EXPECT_EQ(b().link.Await(1, v1::STEP_KIND_RESUME).outcome().code(), 0);
  EXPECT_TRUE(b().hooks.AwaitCalls(HookKind::kResume, 2));
}

TEST_F(ExecutorFailureTest, ALostCoordinatorLetsEverythingGo) {
  Build();
  Prepare(1);
  a().executor->AbandonAll(absl::UnavailableError("the coordinator is lost"));
  EXPECT_TRUE(a().hooks.AwaitCalls(HookKind::kRelease, 1));
  EXPECT_THAT(std::string(a().hooks.calls().back().outcome.message()), HasSubstr("is lost"));
}

TEST_F(ExecutorFailureTest, ARankThatGoesFailsWhatNeedsIt) {
  Build();
  Prepare(1);
  cluster_.SendStep("bb", cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  const RankPin gone = b().ranks->Remove(cluster_.rank(engines_[0]).registration_id);
  b().executor->RankGone(*gone);
  cluster_.SendStep("a", cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  const v1::StepResult result = b().link.Await(1, v1::STEP_KIND_TRANSFER);
  EXPECT_THAT(Verdict(result, 0).message(), HasSubstr("has gone"));
  EXPECT_EQ(Verdict(result, 1).code(), 0) << Verdict(result, 1).message();
  EXPECT_TRUE(Equal(1));
  EXPECT_FALSE(Equal(0));
  a().link.Await(1, v1::STEP_KIND_TRANSFER);
}

TEST_F(ExecutorFailureTest, ASourceThatGoesIsNotSent) {
  Build();
  Prepare(1);
  const RankPin gone = a().ranks->Remove(cluster_.rank(trainer_).registration_id);
  a().executor->RankGone(*gone);
  const absl::Time start = absl::Now();
  auto results = cluster_.RunStep(cluster_.MakeStep(1, v1::STEP_KIND_TRANSFER));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));  // receivers are told, they do not wait
  EXPECT_THAT(results["a"].outcome().message(), HasSubstr("trainer 0 (node a"));
  EXPECT_NE(Verdict(results["bb"], 0).code(), 0);
  EXPECT_NE(Verdict(results["bb"], 1).code(), 0);
}

TEST_F(ExecutorFailureTest, UnknownSyncsAndSecretsAreRefused) {
  Build();
  cluster_.SendStep("a", cluster_.MakeStep(9, v1::STEP_KIND_COMMIT));
  EXPECT_EQ(CodeOf(a().link.Await(9, v1::STEP_KIND_COMMIT).outcome()),
            absl::StatusCode::kFailedPrecondition);
  v1::Step step = cluster_.MakeStep(10, v1::STEP_KIND_CONNECT);
  step.clear_secret();
  cluster_.SendStep("a", step);
  EXPECT_THAT(a().link.Await(10, v1::STEP_KIND_CONNECT).outcome().message(), HasSubstr("secret"));
  // The two nodes were told different secrets.
  Prepare(11);
  v1::Step other = cluster_.MakeStep(12, v1::STEP_KIND_CONNECT);
  cluster_.SendStep("bb", other);
  other.set_secret(4711);
  cluster_.SendStep("a", other);
  b().link.Await(12, v1::STEP_KIND_CONNECT);
  a().link.Await(12, v1::STEP_KIND_CONNECT);
  cluster_.RunStep(cluster_.MakeStep(12, v1::STEP_KIND_PAUSE));
  auto results =
      cluster_.RunStep(cluster_.MakeStep(12, v1::STEP_KIND_TRANSFER, absl::Milliseconds(1000)));
  EXPECT_EQ(CodeOf(results["a"].outcome()), absl::StatusCode::kNotFound);
  EXPECT_NE(results["bb"].outcome().code(), 0);
}

TEST(ExecutorOrphans, AreGivenUp) {
  ExecutorOptions options;
  options.orphan_grace = absl::ZeroDuration();
  TestCluster cluster(options);
  cluster.AddNode("a");
  cluster.AddRank("a", {Role::kTrainer, 0, 0}, 8192);
  cluster.AddRank("a", {Role::kRollout, 0, 0}, 8192);
  cluster.AddTransfer(0, 1, 0, 8192);
  cluster.Publish(1);
  cluster.RunStep(cluster.MakeStep(1, v1::STEP_KIND_CONNECT));
  cluster.RunStep(cluster.MakeStep(1, v1::STEP_KIND_PAUSE, absl::Milliseconds(200)));
  EXPECT_TRUE(cluster.node("a").hooks.AwaitCalls(HookKind::kResume, 1));
  EXPECT_TRUE(cluster.node("a").hooks.AwaitCalls(HookKind::kRelease, 1));
}

TEST(ExecutorStalls, AreNotWaitedOut) {
  ExecutorOptions options;
  options.receive_stall = absl::Milliseconds(300);
  TestCluster cluster(options);
  cluster.AddNode("a");
  cluster.AddNode("bb");
  cluster.AddRank("a", {Role::kTrainer, 0, 0}, 8192);
  cluster.AddRank("bb", {Role::kRollout, 0, 0}, 8192);
  cluster.AddTransfer(0, 1, 0, 8192);
  cluster.Publish(1);
  cluster.RunStep(cluster.MakeStep(1, v1::STEP_KIND_CONNECT));
  cluster.RunStep(cluster.MakeStep(1, v1::STEP_KIND_PAUSE));
  cluster.SendStep("bb", cluster.MakeStep(1, v1::STEP_KIND_TRANSFER));
  const v1::StepResult result =
      cluster.node("bb").link.Await(1, v1::STEP_KIND_TRANSFER, absl::Seconds(10));
  EXPECT_THAT(result.outcome().message(), HasSubstr("nothing has arrived for 300ms"));
}

}  // namespace
}  // namespace xfer
