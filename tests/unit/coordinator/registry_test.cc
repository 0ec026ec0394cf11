#include "coordinator/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/convert.h"
#include "coordinator/registry/names.h"
#include "tests/unit/coordinator/small_job.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

testing::Matcher<const absl::Status&> Fails(absl::StatusCode code, const std::string& text) {
  return AllOf(testing::Property(&absl::Status::code, code),
               testing::ResultOf([](const absl::Status& s) { return std::string(s.message()); },
                                 HasSubstr(text)));
}

class RegistryTest : public ::testing::Test {
 protected:
  RegistryTest()
      : store_(*Store::Open("")),
        registry_(
            [this](const std::string& job, const RankEntry& rank, const std::string&) {
              gone_.push_back(
                  absl::StrCat(job, ": ", rank.id.ToString(), " #", rank.registration_id));
            },
            store_.get()) {
    registry_.AdmitNode("n0", 7, 1);
    registry_.AdmitNode("n1", 7, 2);
    EXPECT_TRUE(registry_.InsertJob("job", "{}", SmallSpec(2, 2, 2), SmallTable()).ok());
  }
  uint64_t Generation() { return registry_.GetJob("job")->generation(); }
  void PublishAll() {
    for (int t = 0; t < 2; ++t) {
      ASSERT_TRUE(registry_.PublishRank("job", SmallTrainer(t, 2, "n0")).ok());
    }
    for (int e = 0; e < 2; ++e) {
      for (int r = 0; r < 2; ++r) {
        ASSERT_TRUE(registry_.PublishRank("job", SmallRollout(e, r, 2, "n1")).ok());
      }
    }
  }

  std::vector<std::string> gone_;
  std::unique_ptr<Store> store_;
  Registry registry_;
};

TEST_F(RegistryTest, NamesAreChecked) {
  EXPECT_TRUE(CheckName("job name", "a.b_c-9").ok());
  for (const std::string& name : {std::string(), std::string("a b"), std::string(65, 'x'),
                                  std::string("a/b"), std::string("a\nb")}) {
    EXPECT_EQ(CheckName("job name", name).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(registry_.InsertJob(name, "{}", SmallSpec(1, 1, 1), SmallTable()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(CheckHostPort("peer address", "[::1]:80").ok());
  for (const char* address : {"", "host", "host:0", "host:70000", ":80", "host:x", "a b:80"}) {
    EXPECT_FALSE(CheckHostPort("peer address", address).ok()) << address;
  }
}

TEST_F(RegistryTest, JobsAreUniqueByNameAndModel) {
  EXPECT_TRUE(registry_.InsertJob("job", "{}", SmallSpec(2, 2, 2), SmallTable()).ok());
  EXPECT_THAT(registry_.InsertJob("job", "{}", SmallSpec(4, 2, 2), SmallTable()).status(),
              Fails(absl::StatusCode::kAlreadyExists, "job job exists with model small"));
  EXPECT_THAT(registry_.GetJob("other").status(), Fails(absl::StatusCode::kNotFound, "known: job"));
  EXPECT_EQ(registry_.CreateJob("new", "not json").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_.ListJobs().size(), 1u);
}

TEST_F(RegistryTest, CreatesAJobFromAPreset) {
  ASSERT_FALSE(Presets().empty());
  const ModelSpec& spec = Presets().front();
  ASSERT_TRUE(registry_.CreateJob("preset", ToJson(spec)).ok());
  EXPECT_EQ((*registry_.State("preset"))->missing_count(), spec.train.world + spec.rollout.world);
}

TEST_F(RegistryTest, AFinishedJobMakesRoomOnceItsRanksHaveGone) {
  ASSERT_TRUE(registry_.PublishRank("job", SmallTrainer(0, 2, "n0")).ok());
  v1::Outcome outcome;
  outcome.set_code(9);
  ASSERT_TRUE(registry_.FinishJob("job", outcome).ok());
  outcome.set_code(0);
  EXPECT_EQ(registry_.FinishJob("job", outcome)->outcome().code(), 9) << "the first verdict stands";
  EXPECT_THAT(registry_.PublishRank("job", SmallTrainer(1, 2, "n0")).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "has finished"));
  EXPECT_THAT(registry_.InsertJob("job", "{}", SmallSpec(2, 2, 2), SmallTable()).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "trainer 0 on node n0"));
  const uint64_t before = Generation();
  registry_.DropNode("n0", 7, "test");
  ASSERT_TRUE(registry_.InsertJob("job", "{}", SmallSpec(2, 1, 1), SmallTable()).ok());
  EXPECT_FALSE(registry_.GetJob("job")->finished());
  EXPECT_GT(Generation(), before) << "old plans must not match the new job";
}

TEST_F(RegistryTest, PublishingGrowsTheGenerationOnce) {
  const uint64_t before = Generation();
  EXPECT_EQ(*registry_.PublishRank("job", SmallTrainer(0, 2, "n0")), before + 1);
  EXPECT_EQ(*registry_.PublishRank("job", SmallTrainer(0, 2, "n0")), before + 1)
      << "the same registration again";
  EXPECT_EQ(*registry_.PublishRank("job", SmallTrainer(0, 2, "n0", 2)), before + 2);
  EXPECT_THAT(gone_, ElementsAre("job: trainer 0 #1"));
  registry_.DropRank("job", {Role::kTrainer, 0, 0}, "n0", 7, 1, "an old one");
  EXPECT_EQ(Generation(), before + 2);
  registry_.DropRank("job", {Role::kTrainer, 0, 0}, "n0", 7, 2, "the current one");
  EXPECT_EQ(Generation(), before + 3);
}

TEST_F(RegistryTest, PublishRefuses) {
  EXPECT_EQ(registry_.PublishRank("none", SmallTrainer(0, 2, "n0")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(registry_.PublishRank("job", SmallTrainer(0, 2, "n9")).status(),
              Fails(absl::StatusCode::kUnavailable, "node n9 has no living session"));
  RankEntry stale = SmallTrainer(0, 2, "n0");
  stale.incarnation = 6;
  EXPECT_EQ(registry_.PublishRank("job", stale).status().code(),
            absl::StatusCode::kFailedPrecondition);
  RankEntry nic = SmallTrainer(0, 2, "n0");
  nic.nic = 1;
  EXPECT_THAT(registry_.PublishRank("job", nic).status(),
              Fails(absl::StatusCode::kInvalidArgument, "NIC 1"));
  for (const RankId& id : {RankId{Role::kTrainer, 0, 2}, RankId{Role::kTrainer, 1, 0},
                           RankId{Role::kTrainer, 0, -1}, RankId{Role::kRollout, 2, 0},
                           RankId{Role::kRollout, 0, 2}, RankId{Role::kRollout, -1, 0}}) {
    EXPECT_THAT(registry_.PublishRank("job", SmallRank(id, 0, 2, "n0")).status(),
                Fails(absl::StatusCode::kInvalidArgument, "2 trainers and 2 engines of 2 ranks"));
  }
  ASSERT_TRUE(registry_.PublishRank("job", SmallTrainer(0, 2, "n0")).ok());
  const absl::Status doubled = registry_.PublishRank("job", SmallTrainer(0, 2, "n1")).status();
  EXPECT_THAT(doubled, Fails(absl::StatusCode::kAlreadyExists, "on node n0"));
  EXPECT_THAT(doubled, Fails(absl::StatusCode::kAlreadyExists, "on node n1"));
}

TEST_F(RegistryTest, PiecesMustLieInsideTensorAndRegion) {
  const TensorTable table = SmallTable();
  EXPECT_TRUE(CheckPieces(SmallManifest(1, 2), table).ok());
  const auto broken = [&](auto&& breakit) {
    Manifest manifest = SmallManifest(1, 2);
    breakit(manifest.pieces[1]);
    return CheckPieces(manifest, table);
  };
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(broken([](Piece& p) { p.tensor = 2; }), Fails(bad, "2 tensors"));
  EXPECT_THAT(broken([](Piece& p) { p.tensor = -1; }), Fails(bad, "2 tensors"));
  EXPECT_THAT(broken([](Piece& p) { p.box.start[0] = 5; }), Fails(bad, "model.second.weight"));
  EXPECT_THAT(broken([](Piece& p) { p.box.start[0] = std::numeric_limits<int64_t>::max(); }),
              Fails(bad, "not inside"));
  EXPECT_THAT(broken([](Piece& p) { p.box.extent[1] = 0; }), Fails(bad, "not inside"));
  EXPECT_THAT(broken([](Piece& p) { p.strides = Dims{2}; }), Fails(bad, "dimensions"));
  EXPECT_THAT(broken([](Piece& p) { p.region = 1; }), Fails(bad, "region 1"));
  EXPECT_THAT(broken([](Piece& p) { p.offset += 2; }), Fails(bad, "do not lie inside"));
  EXPECT_THAT(broken([](Piece& p) { p.offset = std::numeric_limits<uint64_t>::max() - 1; }),
              Fails(bad, "do not lie inside"));
  EXPECT_THAT(broken([](Piece& p) { p.strides[0] = std::numeric_limits<int64_t>::max(); }),
              Fails(bad, "do not lie inside"));
  EXPECT_THAT(broken([](Piece& p) { p.strides[0] = -2; }), Fails(bad, "do not lie inside"));
}

TEST_F(RegistryTest, LossOfANodeDropsItsRanksOnly) {
  PublishAll();
  const uint64_t before = Generation();
  registry_.DropNode("n1", 6, "another incarnation");
  EXPECT_EQ(Generation(), before);
  registry_.DropNode("n1", 7, "test");
  EXPECT_EQ(gone_.size(), 4u);
  const auto state = *registry_.State("job");
  EXPECT_EQ(state->ranks_size(), 2);
  EXPECT_EQ(state->missing_count(), 4);
  EXPECT_EQ(FromProto(state->missing(0))->ToString(), "engine 0 rank 0");
  EXPECT_EQ(registry_.RanksByNode().count("n1"), 0u);
}

TEST_F(RegistryTest, SyncNeedsEveryRankAndNamesThoseThatAreMissing) {
  PublishAll();
  registry_.DropRank("job", {Role::kTrainer, 0, 1}, "n0", 7, 1, "test");
  registry_.DropRank("job", {Role::kRollout, 1, 0}, "n1", 7, 1, "test");
  EXPECT_THAT(registry_.BeginSync("job", {}, 1, 1).status(),
              Fails(absl::StatusCode::kFailedPrecondition,
                    "2 ranks are not registered: trainer 1, engine 1 rank 0;"));
  // A sync of engine 0 does not need engine 1.
  ASSERT_TRUE(registry_.PublishRank("job", SmallTrainer(1, 2, "n0", 3)).ok());
  EXPECT_TRUE(registry_.BeginSync("job", {0}, 1, 1).ok());
  EXPECT_THAT(registry_.BeginSync("job", {2}, 1, 2).status(),
              Fails(absl::StatusCode::kInvalidArgument, "engines 0 to 1"));
}

TEST_F(RegistryTest, ManyMissingRanksAreCutAtSixteen) {
  ASSERT_TRUE(registry_.InsertJob("big", "{}", SmallSpec(40, 1, 1), SmallTable()).ok());
  EXPECT_THAT(registry_.BeginSync("big", {}, 1, 1).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "trainer 15 and 25 more"));
  EXPECT_EQ((*registry_.State("big"))->missing_size(), 16);
}

TEST_F(RegistryTest, VersionIsTheTrainers) {
  PublishAll();
  EXPECT_EQ(registry_.BeginSync("job", {}, 0, 1)->version, 1);
  registry_.EndSync("job", std::vector<int32_t>{0, 1}, 1);
  v1::RankReport report;
  report.set_job("job");
  *report.mutable_id() = ToProto(RankId{Role::kTrainer, 0, 1});
  report.set_registration_id(1);
  report.set_ready_version(2);
  ASSERT_TRUE(registry_.Report("n0", 7, report).ok());
  EXPECT_THAT(registry_.BeginSync("job", {}, 0, 2).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "trainer 1 at version 2"));
  EXPECT_THAT(registry_.BeginSync("job", {}, 2, 2).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "trainer 0 at version 1"));
  EXPECT_EQ(registry_.BeginSync("job", {}, -1, 2).status().code(),
            absl::StatusCode::kInvalidArgument);
  report.set_registration_id(9);
  EXPECT_EQ(registry_.Report("n0", 7, report).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_.Report("n1", 7, report).code(), absl::StatusCode::kNotFound);
}

TEST_F(RegistryTest, TrainersThatDidNotSayAreTrustedOnlyWithAnExplicitVersion) {
  PublishAll();
  RankEntry silent = SmallTrainer(1, 2, "n0", 2);
  silent.ready_version = 0;
  ASSERT_TRUE(registry_.PublishRank("job", silent).ok());
  EXPECT_THAT(registry_.BeginSync("job", {}, 0, 1).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "trainer 1 at none"));
  EXPECT_EQ(registry_.BeginSync("job", {}, 1, 1)->version, 1);
}

TEST_F(RegistryTest, OneSyncAnEngine) {
  PublishAll();
  ASSERT_TRUE(registry_.BeginSync("job", {1}, 0, 41).ok());
  EXPECT_THAT(registry_.BeginSync("job", {}, 0, 42).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "sync 41 is running on engine 1"));
  ASSERT_TRUE(registry_.BeginSync("job", {0}, 0, 42).ok());
  registry_.EndSync("job", std::vector<int32_t>{1}, 40);  // not the owner: no effect
  EXPECT_FALSE(registry_.BeginSync("job", {1}, 0, 43).ok());
  registry_.EndSync("job", std::vector<int32_t>{1}, 41);
  EXPECT_TRUE(registry_.BeginSync("job", {1}, 0, 43).ok());
}

TEST_F(RegistryTest, DirtyUntilCommitted) {
  PublishAll();
  const SyncInput input = *registry_.BeginSync("job", {0}, 0, 1);
  EXPECT_TRUE(input.dirty.empty());
  ASSERT_TRUE(registry_.MarkDirty("job", {{0, "half written"}}).ok());
  EXPECT_TRUE((*registry_.ListEngines("job"))[0].dirty());
  EXPECT_EQ((*registry_.ListEngines("job"))[0].dirty_reason(), "half written");
  EXPECT_EQ(registry_.PlanInputOf("job", {})->dirty.count(0), 1u);
  ASSERT_TRUE(registry_.Commit(input, 0).ok());
  const v1::EngineInfo engine = (*registry_.ListEngines("job"))[0];
  EXPECT_FALSE(engine.dirty());
  EXPECT_EQ(engine.dirty_reason(), "");
  EXPECT_EQ(engine.version(), 1);
}

TEST_F(RegistryTest, NoCommitForARankThatWasRegisteredAnew) {
  PublishAll();
  const SyncInput input = *registry_.BeginSync("job", {0}, 0, 1);
  ASSERT_TRUE(registry_.PublishRank("job", SmallRollout(0, 1, 2, "n1", 2)).ok());
  ASSERT_EQ(registry_.Outdated(input).size(), 1u);
  EXPECT_THAT(registry_.Commit(input, 0),
              Fails(absl::StatusCode::kFailedPrecondition, "engine 0 rank 1 on node n1"));
  EXPECT_EQ((*registry_.ListEngines("job"))[0].version(), 0);
}

TEST_F(RegistryTest, AnEngineKeepsItsVersionOnlyInTheSameMemory) {
  PublishAll();
  ASSERT_TRUE(registry_.Commit(*registry_.BeginSync("job", {0}, 0, 1), 0).ok());
  // The session broke for good and came back: the same registration.
  registry_.DropNode("n1", 7, "test");
  registry_.AdmitNode("n1", 7, 2);
  PublishAll();
  EXPECT_EQ((*registry_.ListEngines("job"))[0].version(), 1);
  ASSERT_TRUE(registry_.PublishRank("job", SmallRollout(0, 0, 2, "n1", 2)).ok());
  EXPECT_EQ((*registry_.ListEngines("job"))[0].version(), 0);
}

TEST_F(RegistryTest, WatchersAreWokenAndSeeTheLastState) {
  absl::Notification seen;
  const uint64_t id = registry_.feed().Add("job", [&] {
    const auto state = *registry_.State("job");
    if (state->missing_count() == 0 && !seen.HasBeenNotified()) seen.Notify();
  });
  PublishAll();
  EXPECT_TRUE(seen.WaitForNotificationWithTimeout(absl::Seconds(10)));
  registry_.feed().Remove("job", id);
}

}  // namespace
}  // namespace xfer
