// Syncs that go well, in full or in part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/rpc/convert.h"
#include "tests/unit/coordinator/sync_fixture.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SyncTest : public SyncFixture {};

TEST_F(SyncTest, GoesThroughEveryPhase) {
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_DONE) << sync.outcome().message();
  EXPECT_EQ(sync.outcome().code(), 0);
  EXPECT_EQ(sync.version(), 1);
  EXPECT_THAT(agents_.TakeLog(), ElementsAre("CONNECT e0 e1 t", "PAUSE e0 e1 t", "TRANSFER e0 e1 t",
                                             "COMMIT e0 e1", "RESUME e0 e1 t"));
  std::vector<v1::Phase> phases;
  int64_t end = 0;
  for (const v1::PhaseTiming& timing : sync.phases()) {
    phases.push_back(timing.phase());
    EXPECT_GE(timing.start_ns(), end);
    EXPECT_GE(timing.duration_ns(), 0);
    end = timing.start_ns() + timing.duration_ns();
  }
  EXPECT_THAT(phases,
              ElementsAre(v1::PHASE_PLAN, v1::PHASE_CONNECT, v1::PHASE_PAUSE, v1::PHASE_TRANSFER,
                          v1::PHASE_VERIFY, v1::PHASE_COMMIT, v1::PHASE_RESUME));
  EXPECT_LE(end, sync.total_ns());
  EXPECT_GT(sync.start_unix_ms(), 0);
  EXPECT_EQ(sync.bytes_total(), uint64_t{1024});  // 2 engines, 2 tensors of 256 bytes
  EXPECT_EQ(sync.plan().transfers(), plans_.Find(sync.plan_id()).value()->plan.transfers.size());
  ASSERT_EQ(sync.ranks_size(), 6);
  EXPECT_EQ(sync.ranks(0).node(), "t");
  EXPECT_GE(sync.ranks(0).start_ns(), 0) << "relative to the trigger";
  EXPECT_LT(sync.ranks(0).start_ns(), sync.total_ns());
  for (int e = 0; e < 2; ++e) {
    EXPECT_TRUE(sync.engines(e).committed());
    EXPECT_EQ(Engine(e).version(), 1);
    EXPECT_FALSE(Engine(e).dirty());
    EXPECT_EQ(Engine(e).running_sync(), 0u);
  }
  EXPECT_THAT(agents_.ended(), SizeIs(3));
  for (const auto& [key, reason] : agents_.ended()) EXPECT_EQ(reason, "") << key.first;
}

TEST_F(SyncTest, StepsCarryWhatAgentsNeed) {
  agents_.Behave([&](const std::string&, const v1::Step& step, v1::StepResult good) {
    EXPECT_EQ(step.job(), "job");
    EXPECT_EQ(step.version(), 1);
    EXPECT_NE(step.secret(), 0u);
    EXPECT_NE(step.plan_id(), 0u);
    EXPECT_EQ(step.verify(), v1::VERIFY_SAMPLE);
    EXPECT_EQ(step.transport(), "tcp");
    EXPECT_GT(step.deadline_ms(), 0);
    EXPECT_LT(step.deadline_ms(), 10'300);
    if (step.kind() == v1::STEP_KIND_TRANSFER) {
      // Dirty before the first byte.
      EXPECT_TRUE(Engine(0).dirty());
      EXPECT_THAT(Engine(0).dirty_reason(), HasSubstr("has begun to write to it"));
      EXPECT_NE(Engine(0).running_sync(), 0u);
    }
    return good;
  });
  v1::TriggerSyncRequest request = Request();
  request.set_verify(v1::VERIFY_SAMPLE);
  request.set_transport("tcp");
  EXPECT_EQ(Run(request).state(), v1::SYNC_STATE_DONE);
  const v1::Step connect = *agents_.Find("t", v1::STEP_KIND_CONNECT);
  ASSERT_EQ(connect.peers_size(), 2);
  EXPECT_EQ(connect.peers(0).node(), "e0");
  EXPECT_EQ(connect.peers(0).incarnation(), 7u);
  EXPECT_EQ(agents_.Find("e0", v1::STEP_KIND_CONNECT)->peers_size(), 0);
  EXPECT_EQ(agents_.Find("t", v1::STEP_KIND_PAUSE)->ranks_size(), 2);
  EXPECT_EQ(agents_.Find("e1", v1::STEP_KIND_COMMIT)->ranks(1).engine(), 1);
  const v1::Step resume = *agents_.Find("e1", v1::STEP_KIND_RESUME);
  EXPECT_TRUE(resume.success());
  EXPECT_EQ(resume.ranks_size(), 2);
  EXPECT_EQ(resume.failed_size(), 0);
}

TEST_F(SyncTest, ASteadyStateSkipsConnectUntilSomethingChanges) {
  EXPECT_FALSE(Run().plan_cached());
  agents_.TakeLog();
  EXPECT_TRUE(Run().plan_cached());
  EXPECT_THAT(agents_.TakeLog(),
              ElementsAre("PAUSE e0 e1 t", "TRANSFER e0 e1 t", "COMMIT e0 e1", "RESUME e0 e1 t"));
  agents_.OpenSession("e1", 2);  // it reconnected
  Run();
  EXPECT_THAT(agents_.TakeLog().front(), "CONNECT e1");
  v1::TriggerSyncRequest tcp = Request();
  tcp.set_transport("tcp");  // other connections
  Run(tcp);
  EXPECT_THAT(agents_.TakeLog().front(), "CONNECT e0 e1 t");
  Publish(SmallRollout(0, 0, 2, "e0", 2));  // another registration: another generation
  EXPECT_FALSE(Run().plan_cached());
  EXPECT_THAT(agents_.TakeLog().front(), "CONNECT e0 e1 t");
}

TEST_F(SyncTest, OneEngineAlone) {
  v1::TriggerSyncRequest request = Request();
  request.add_engines(1);
  EXPECT_EQ(Run(request).state(), v1::SYNC_STATE_DONE);
  EXPECT_THAT(agents_.TakeLog().front(), "CONNECT e1 t");
  EXPECT_EQ(Engine(0).version(), 0);
  EXPECT_EQ(Engine(1).version(), 1);
}

TEST_F(SyncTest, Refusals) {
  v1::TriggerSyncRequest request = Request();
  request.set_mode(v1::MODE_BROADCAST);
  EXPECT_EQ(runner_->Trigger(request).status().code(), absl::StatusCode::kUnimplemented);
  request = Request();
  request.set_transport("pigeon");
  EXPECT_EQ(runner_->Trigger(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Request(-1);
  EXPECT_EQ(runner_->Trigger(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Request();
  request.set_job("none");
  EXPECT_EQ(runner_->Trigger(request).status().code(), absl::StatusCode::kNotFound);
  request = Request();
  request.set_version(3);
  EXPECT_EQ(runner_->Trigger(request).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runner_->history().Find(0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(runner_->Cancel(5, absl::CancelledError("x")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(SyncTest, APlanThatCannotBeFailsTheSyncAndDirtiesNothing) {
  // Trainer 1 holds the same rows as trainer 0: half of each tensor is nowhere.
  RankEntry rank = SmallTrainer(1, 2, "t", 2);
  rank.manifest = std::make_shared<const Manifest>(SmallManifest(0, 2));
  Publish(rank);
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_FAILED);
  EXPECT_EQ(sync.outcome().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(sync.outcome().message(), HasSubstr("model.first.weight"));
  EXPECT_THAT(agents_.TakeLog(), SizeIs(0));
  EXPECT_FALSE(Engine(0).dirty());
  EXPECT_EQ(Engine(0).running_sync(), 0u);
}

TEST_F(SyncTest, ProgressIsSummedAndJoined) {
  agents_.Behave([&](const std::string& node, const v1::Step& step, v1::StepResult good) {
    if (step.kind() == v1::STEP_KIND_TRANSFER && node == "e0") {
      v1::Progress progress;
      progress.set_sync_id(step.sync_id());
      for (uint64_t bytes = 1; bytes <= 500; ++bytes) {
        progress.set_bytes_done(bytes);
        runner_->OnProgress("e0", progress);
      }
    }
    return good;
  });
  const v1::Sync sync = Run();
  EXPECT_EQ(sync.state(), v1::SYNC_STATE_DONE);
  EXPECT_GE(sync.bytes_done(), 500u);
}

TEST_F(SyncTest, TimingsOfTransfersAreKeptRelativeAndNamed) {
  const v1::Sync sync = Run();
  const auto record = *runner_->history().Find(sync.id());
  v1::TransferTimings timings;
  timings.set_sync_id(sync.id());
  timings.set_node("t");
  v1::TransferTiming* timing = timings.add_transfers();
  timing->set_transfer(1);
  timing->set_start_ns(record->trigger_ns() + 10);
  timing->set_end_ns(record->trigger_ns() + 30);
  timing->set_bytes(64);
  timing->set_transport("tcp");
  ASSERT_TRUE(runner_->AddTimings(timings).ok());
  const std::vector<v1::TransferTiming> kept = record->Timings();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].start_ns(), 10);
  EXPECT_EQ(kept[0].end_ns(), 30);
  EXPECT_EQ(kept[0].transport(), "tcp");
  EXPECT_THAT(kept[0].tensor(), HasSubstr("model."));
  EXPECT_EQ(kept[0].source().role(), v1::ROLE_TRAINER);
  EXPECT_EQ(kept[0].destination().role(), v1::ROLE_ROLLOUT);
  timing->set_transfer(sync.plan().transfers());
  EXPECT_EQ(runner_->AddTimings(timings).code(), absl::StatusCode::kInvalidArgument);
  timing->set_transfer(0);
  while (timings.transfers_size() <= 2 * static_cast<int>(sync.plan().transfers())) {
    *timings.add_transfers() = timings.transfers(0);
  }
  EXPECT_EQ(runner_->AddTimings(timings).code(), absl::StatusCode::kInvalidArgument);
  timings.set_sync_id(99);
  EXPECT_EQ(runner_->AddTimings(timings).code(), absl::StatusCode::kNotFound);
}

TEST_F(SyncTest, TheHistoryIsBounded) {
  History history(3, 1);
  for (uint64_t id = 1; id <= 5; ++id) {
    v1::Sync sync;
    sync.set_id(id);
    sync.set_job(id % 2 == 0 ? "even" : "odd");
    history.Add(std::make_shared<SyncRecord>(sync, 0));
  }
  EXPECT_EQ((*history.Find(0))->id(), 5u);
  EXPECT_EQ(history.Find(2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(history.List("", 10), SizeIs(3));
  ASSERT_THAT(history.List("odd", 10), SizeIs(2));
  EXPECT_EQ(history.List("odd", 1)[0]->id(), 5u);
}

TEST_F(SyncTest, AnEmptySyncIsQuick) {
  Run();
  std::vector<int64_t> times;
  for (int i = 0; i < 20; ++i) times.push_back(Run().total_ns());
  std::sort(times.begin(), times.end());
  RecordProperty("median_us", static_cast<int>(times[10] / 1000));
  // Far below the target of 10 ms, sanitizers and a busy machine included: the quickest counts.
  EXPECT_LT(times[0], 10'000'000);
}

TEST_F(SyncTest, PlansAreCachedByJobEnginesAndGeneration) {
  const SyncInput all = *registry_.PlanInputOf("job", {});
  const SyncInput one = *registry_.PlanInputOf("job", {1});
  const auto first = *plans_.Get(all);
  EXPECT_FALSE(first.cached);
  const uint64_t first_id = first.plan->id;
  EXPECT_TRUE(plans_.Get(all)->cached);
  EXPECT_FALSE(plans_.Get(one)->cached);
  EXPECT_TRUE(plans_.Get(all)->cached);
  EXPECT_EQ(first.plan->registration_ids.size(), first.plan->plan.ranks.size());
  EXPECT_THAT(first.plan->registration_ids, Each(1u));
  // Two are kept; the third pushes out the one used least recently, which is `one`.
  const uint64_t one_id = plans_.Get(one)->plan->id;
  EXPECT_TRUE(plans_.Get(all)->cached);
  EXPECT_FALSE(plans_.Get(*registry_.PlanInputOf("job", {0}))->cached);
  EXPECT_THAT(agents_.forgotten(), ElementsAre(one_id));
  EXPECT_EQ(plans_.Find(one_id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(plans_.Get(all)->cached);
  // A new generation drops the older ones, but not from under who still holds one.
  Publish(SmallTrainer(0, 2, "t", 2));
  EXPECT_FALSE(plans_.Get(*registry_.PlanInputOf("job", {}))->cached);
  EXPECT_TRUE(plans_.Find(first_id).ok());
}

}  // namespace
}  // namespace xfer
