#include "xferctl/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xferctl/exit.h"
#include "xferctl/run/steps.h"

namespace xfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::RankId Rollout(int32_t engine, int32_t rank) {
  v1::RankId id;
  id.set_role(v1::ROLE_ROLLOUT);
  id.set_engine(engine);
  id.set_rank(rank);
  return id;
}

void AddPhase(v1::Sync& sync, v1::Phase phase, int64_t ms) {
  v1::PhaseTiming* timing = sync.add_phases();
  timing->set_phase(phase);
  timing->set_duration_ns(ms * 1'000'000);
}

v1::Sync DoneSync(int64_t transfer_ms) {
  v1::Sync sync;
  sync.set_id(4);
  sync.set_version(2);
  sync.set_state(v1::SYNC_STATE_DONE);
  sync.set_bytes_total(2'000'000'000);
  sync.set_total_ns((transfer_ms + 1) * 1'000'000);
  sync.set_plan_cached(true);
  AddPhase(sync, v1::PHASE_PLAN, 1);
  AddPhase(sync, v1::PHASE_TRANSFER, transfer_ms);
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankTiming* timing = sync.add_ranks();
    *timing->mutable_id() = Rollout(1, rank);
    timing->set_node("node-1");
    timing->set_start_ns(1'000'000);
    timing->set_end_ns((rank + 5) * 1'000'000);
  }
  return sync;
}

TEST(PhaseTableTest, ShowsPhasesRatesAndTheSlowestRank) {
  EXPECT_EQ(PhaseTable(DoneSync(1'000)).ToString(false),
            "PHASE               MS    BYTES  GB/S  SLOWEST RANK\n"
            "plan (cached)     1.00\n"
            "transfer       1000.00  2.00 GB  2.00  engine 1 rank 1 on node-1 (5.00 ms)\n"
            "total          1001.00  2.00 GB  2.00\n");
}

TEST(SummaryTableTest, IsOverTheSteadySteps) {
  EXPECT_EQ(
      SummaryTable({DoneSync(5'000), DoneSync(400), DoneSync(1'000), DoneSync(600), DoneSync(500)})
          .ToString(false),
      "PHASE     MIN MS  MEDIAN MS   MAX MS  MEDIAN GB/S\n"
      "plan        1.00       1.00     1.00\n"
      "transfer  400.00     550.00  1000.00         3.64\n"
      "total     401.00     551.00  1001.00         3.63\n");
}

TEST(SyncStatusTest, FailuresNameNodesRanksTensorAndCause) {
  v1::Sync sync = DoneSync(10);
  EXPECT_TRUE(SyncStatus(sync).ok());
  sync.set_state(v1::SYNC_STATE_FAILED);
  sync.mutable_outcome()->set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  sync.mutable_outcome()->set_message("digests differ");
  EXPECT_EQ(SyncStatus(sync), absl::DataLossError("sync 4 of version 2 failed: digests differ"));
  EXPECT_EQ(ExitCodeOf(SyncStatus(sync)), kExitFailed);

  v1::EngineResult* engine = sync.add_engines();
  engine->set_engine(1);
  engine->mutable_outcome()->set_code(15);
  engine->set_failure_count(3);
  v1::TransferFailure* failure = engine->add_failures();
  failure->mutable_source()->set_role(v1::ROLE_TRAINER);
  failure->mutable_source()->set_rank(3);
  failure->set_source_node("node-0");
  *failure->mutable_destination() = Rollout(1, 0);
  failure->set_destination_node("node-1");
  failure->set_tensor("model.norm.weight");
  failure->mutable_outcome()->set_message("digests differ");
  engine = sync.add_engines();
  engine->set_engine(2);
  engine->mutable_outcome()->set_code(14);
  engine->mutable_outcome()->set_message("node-2 was lost");
  sync.add_engines()->set_committed(true);
  EXPECT_THAT(
      FailureLines(sync),
      ElementsAre(
          "engine 1: engine 1 rank 0 on node-1 from trainer 3 on node-0, tensor model.norm.weight: "
          "digests differ",
          "engine 1: and 2 more transfers", "engine 2: node-2 was lost"));
}

v1::JobState State(int64_t verdict, int64_t ready) {
  v1::JobState state;
  v1::RankInfo* trainer = state.add_ranks();
  trainer->mutable_id()->set_role(v1::ROLE_TRAINER);
  trainer->set_ready_version(ready);
  v1::RankInfo* rollout = state.add_ranks();
  *rollout->mutable_id() = Rollout(0, 1);
  rollout->set_node("node-1");
  rollout->mutable_owner_report()->set_version(verdict);
  return state;
}

TEST(VerdictsTest, CountForTheVersionInQuestion) {
  EXPECT_FALSE(AllJudged(State(1, 1), 2, 1));
  EXPECT_TRUE(AllJudged(State(2, 1), 2, 1));
  EXPECT_FALSE(AllJudged(State(2, 1), 2, 2));
  EXPECT_FALSE(AllReady(State(2, 2), 3, 1));
  EXPECT_TRUE(AllReady(State(2, 3), 3, 1));
}

TEST(VerdictsTest, ABadOneNamesRankAndTensor) {
  v1::JobState state = State(2, 1);
  EXPECT_TRUE(CheckVerdicts(state, 2).ok());
  v1::OwnerReport* report = state.mutable_ranks(1)->mutable_owner_report();
  report->mutable_outcome()->set_code(15);
  report->mutable_outcome()->set_message("model.norm.weight differs");
  const absl::Status status = CheckVerdicts(state, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("engine 0 rank 1 on node-1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.norm.weight differs"));
  EXPECT_TRUE(CheckVerdicts(state, 3).ok());  // about an older version
}

}  // namespace
}  // namespace xfer
