#include "client/emulator/emulated_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/prepare.h"
#include "common/checkpoint/shards.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Keeps what one rank registered with and reported.
class FakeClient final : public RankClient {
 public:
  absl::StatusOr<std::unique_ptr<RegisteredRank>> Register(const RankOptions& options) override {
    absl::MutexLock lock(&mu_);
    options_ = options;
    return std::make_unique<Rank>(*this);
  }

  const RankOptions& options() const { return options_; }
  // Waits for the report on `version`.
  absl::Status Verdict(int64_t version) { return Wait(verdicts_, version); }
  absl::Status Ready(int64_t version) { return Wait(ready_, version); }

  absl::Status Call(Hook hook, int64_t version, absl::Status outcome = absl::OkStatus(),
                    absl::Duration patience = kPatience) {
    return options_.on_hook({hook, 1, version, absl::Now() + patience, std::move(outcome)});
  }

 private:
  class Rank final : public RegisteredRank {
   public:
    explicit Rank(FakeClient& client) : client_(client) {}
    uint64_t registration_id() const override { return 1; }
    absl::Status ReportReady(int64_t version) override {
      return client_.Keep(client_.ready_, version, {});
    }
    absl::Status ReportVerdict(int64_t version, const absl::Status& verdict) override {
      return client_.Keep(client_.verdicts_, version, verdict);
    }

   private:
    FakeClient& client_;
  };
  using Reports = std::map<int64_t, absl::Status>;

  absl::Status Keep(Reports& reports, int64_t version, const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    reports[version] = status;
    return absl::OkStatus();
  }
  absl::Status Wait(Reports& reports, int64_t version) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return reports.count(version) > 0; };
    if (!mu_.AwaitWithTimeout(absl::Condition(&there), kPatience))
      return absl::DeadlineExceededError("no report");
    return reports[version];
  }

  absl::Mutex mu_;
  RankOptions options_;
  Reports ready_, verdicts_;
};

// One layer of Qwen3-4B with small widths, prepared once for all tests.
class EmulatedRankTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string path = "/tmp/xfer-emulator-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = new std::string(path);
    ModelSpec spec = *FindPreset("Qwen3-4B");
    spec.config = *KeepLayers(spec.config, 1);
    PrepareOptions options;
    options.spec = *Shrink(spec);
    options.synthesize = true;
    options.tiny = true;
    options.out_dir = path;
    const auto result = Prepare(options);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*directory_);
    delete directory_;
  }

  EmulatedRankTest() {
    Prepared prepared = *OpenPrepared(*directory_);
    context_.job = "job";
    context_.spec = prepared.spec;
    context_.table = *BuildTensorTable(prepared.spec.config);
    context_.shards = prepared.shards;
    context_.checkpoint = *Checkpoint::Open(prepared.hf_dir);
    context_.last_version = 2;
    context_.pool = pool_.get();
    context_.on_lost = [](const absl::Status& status) { ADD_FAILURE() << status; };
  }

  std::unique_ptr<EmulatedRank> Start(const RankId& id) {
    auto rank = EmulatedRank::Create(context_, id);
    EXPECT_TRUE(rank.ok()) << rank.status();
    const absl::Status loaded = (*rank)->Load();
    EXPECT_TRUE(loaded.ok()) << loaded;
    EXPECT_TRUE((*rank)->Register(client_, kPatience).ok());
    return *std::move(rank);
  }
  static std::string* directory_;
  EmulatorContext context_;
  FakeClient client_;
  std::unique_ptr<WorkPool> pool_ = std::make_unique<WorkPool>(2);
};

std::string* EmulatedRankTest::directory_ = nullptr;

constexpr RankId kTrainer = {Role::kTrainer, 0, 1};
constexpr RankId kRollout = {Role::kRollout, 1, 1};

TEST_F(EmulatedRankTest, TrainerRegistersOneRegionThatHoldsItsShard) {
  auto rank = Start(kTrainer);
  const RankOptions& options = client_.options();
  EXPECT_EQ(options.id, kTrainer);
  EXPECT_EQ(options.world, context_.spec.train.world);
  EXPECT_EQ(options.ready_version, 1);
  ASSERT_EQ(options.regions.size(), 1u);
  const auto shard = SafetensorsFile::Open(context_.shards[1]);
  ASSERT_TRUE(shard.ok());
  std::vector<std::byte> region(options.regions[0].bytes);
  ASSERT_EQ(pread(options.regions[0].fd, region.data(), region.size(), 0),
            static_cast<ssize_t>(region.size()));
  ASSERT_FALSE(options.tensors.empty());
  for (const TensorPlacement& tensor : options.tensors) {
    EXPECT_EQ(tensor.offset % 256, 0u);
    const TensorView view = *(*shard)->Find(tensor.name);
    EXPECT_EQ(memcmp(region.data() + tensor.offset, view.data.data(), view.data.size()), 0)
        << tensor.name;
  }
}

TEST_F(EmulatedRankTest, TrainerStepsAfterAGoodReleaseUntilItsLastVersion) {
  auto rank = Start(kTrainer);
  EXPECT_TRUE(client_.Call(Hook::kHold, 1).ok());
  EXPECT_TRUE(client_.Call(Hook::kRelease, 1).ok());
  EXPECT_TRUE(client_.Ready(2).ok());
  EXPECT_TRUE(client_.Call(Hook::kHold, 2).ok());
  EXPECT_TRUE(client_.Call(Hook::kRelease, 2).ok());
  pool_.reset();  // all work has ended
  // Still version 2, and in truth: another process's view of it is the checkpoint's version 2.
  EXPECT_TRUE(client_.Call(Hook::kHold, 2).ok());
  const RankOptions& options = client_.options();
  std::vector<std::byte> region(options.regions[0].bytes);
  ASSERT_EQ(pread(options.regions[0].fd, region.data(), region.size(), 0),
            static_cast<ssize_t>(region.size()));
  const RankLayout layout = *MegatronLayout(context_.spec, context_.table, kTrainer.rank);
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const TensorPlacement& placed = options.tensors[i];
    const absl::Span<const std::byte> bytes(region.data() + placed.offset,
                                            NumElements(placed.shape) * SizeOf(placed.dtype));
    const absl::Status equal =
        CheckAgainstCheckpoint(layout.tensors[i], context_.table, *context_.checkpoint, 2, bytes);
    EXPECT_TRUE(equal.ok()) << equal;
  }
}

TEST_F(EmulatedRankTest, TrainerDoesNotStepAfterAFailedSync) {
  auto rank = Start(kTrainer);
  EXPECT_TRUE(client_.Call(Hook::kHold, 1).ok());
  EXPECT_TRUE(client_.Call(Hook::kRelease, 1, absl::AbortedError("lost")).ok());
  EXPECT_TRUE(client_.Call(Hook::kHold, 1).ok());
  // Two syncs hold it now: the end of the first must not let it step under the second.
  EXPECT_TRUE(client_.Call(Hook::kHold, 1).ok());
  EXPECT_TRUE(client_.Call(Hook::kRelease, 1).ok());
  EXPECT_TRUE(client_.Call(Hook::kHold, 1).ok());
}

TEST_F(EmulatedRankTest, TrainerRefusesAVersionThatItDoesNotHave) {
  auto rank = Start(kTrainer);
  const absl::Status status = client_.Call(Hook::kHold, 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("trainer 1 holds version 1, but version 5"));
}

TEST_F(EmulatedRankTest, RolloutStartsWithNoiseAndSaysSo) {
  auto rank = Start(kRollout);
  EXPECT_EQ(client_.options().world, context_.spec.rollout.gpus_per_engine);
  EXPECT_TRUE(client_.Call(Hook::kPause, 1).ok());
  EXPECT_TRUE(client_.Call(Hook::kResume, 1).ok());
  const absl::Status verdict = client_.Verdict(1);
  EXPECT_EQ(verdict.code(), absl::StatusCode::kDataLoss) << verdict;
  EXPECT_THAT(std::string(verdict.message()), HasSubstr("model.embed_tokens.weight"));
}

TEST_F(EmulatedRankTest, RolloutFindsTheRightWeightsRightAndOneWrongByte) {
  auto rank = Start(kRollout);
  const RankOptions& options = client_.options();
  const RankLayout layout = *SglangLayout(context_.spec, context_.table, kRollout.rank);
  // What a sync of version 3 would have written.
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const TensorPlacement& placed = options.tensors[i];
    std::vector<std::byte> bytes(NumElements(placed.shape) * SizeOf(placed.dtype));
    ASSERT_TRUE(FillFromCheckpoint(layout.tensors[i], context_.table, *context_.checkpoint,
                                   absl::MakeSpan(bytes), 3)
                    .ok());
    ASSERT_EQ(pwrite(options.regions[0].fd, bytes.data(), bytes.size(),
                     static_cast<off_t>(placed.offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  EXPECT_TRUE(client_.Call(Hook::kResume, 3).ok());
  EXPECT_TRUE(client_.Verdict(3).ok()) << client_.Verdict(3);
  EXPECT_TRUE(client_.Call(Hook::kPause, 4).ok());
  EXPECT_TRUE(client_.Call(Hook::kResume, 4).ok());
  EXPECT_FALSE(client_.Verdict(4).ok());  // memory is still at version 3

  const TensorPlacement& last = options.tensors.back();
  char byte = 0;
  ASSERT_EQ(pread(options.regions[0].fd, &byte, 1, static_cast<off_t>(last.offset)), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(options.regions[0].fd, &byte, 1, static_cast<off_t>(last.offset)), 1);
  EXPECT_TRUE(client_.Call(Hook::kResume, 3).ok());
  EXPECT_TRUE(client_.Call(Hook::kPause, 5).ok());  // the check has ended
  pool_.reset();
  EXPECT_THAT(std::string(client_.Verdict(3).message()), HasSubstr(last.name));
}

TEST_F(EmulatedRankTest, RolloutDoesNotJudgeAFailedSync) {
  context_.check = true;
  auto rank = Start(kRollout);
  EXPECT_TRUE(client_.Call(Hook::kResume, 1, absl::AbortedError("lost")).ok());
  pool_.reset();
  EXPECT_TRUE(client_.Call(Hook::kPause, 2).ok());
}

TEST_F(EmulatedRankTest, DumpHoldsTheFrameworksTensors) {
  auto rank = Start(kRollout);
  rank->Leave();
  const std::string dump = *directory_ + "/dump";
  std::filesystem::create_directories(dump + "/rollout");
  ASSERT_TRUE(rank->Dump(dump).ok());
  const auto file = SafetensorsFile::Open(dump + "/rollout/engine-0001-rank-0001.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), client_.options().tensors.size());
}

TEST_F(EmulatedRankTest, RanksThatDoNotExistAreRefused) {
  for (const RankId& id :
       {RankId{Role::kTrainer, 0, 4}, RankId{Role::kRollout, 2, 0}, RankId{Role::kRollout, 0, 2}}) {
    EXPECT_EQ(EmulatedRank::Create(context_, id).status().code(),
              absl::StatusCode::kInvalidArgument)
        << id.ToString();
  }
}

TEST_F(EmulatedRankTest, AShardOfAnotherShapeIsRefused) {
  context_.shards[1] = context_.shards[0];
  context_.shards[0] = *directory_ + "/hf/model.safetensors";
  auto rank = EmulatedRank::Create(context_, {Role::kTrainer, 0, 0});
  ASSERT_TRUE(rank.ok());
  EXPECT_FALSE((*rank)->Load().ok());
}

}  // namespace
}  // namespace xfer
