#include "agent/exec/sync_receive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "agent/exec/receive_state.h"
#include "agent/exec/transfer_digest.h"
#include "common/base/digest.h"
#include "common/rpc/convert.h"
#include "tests/unit/agent/exec/test_cluster.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64 * kDigestLeafBytes;
constexpr uint64_t kOdd = kBytes - 100;
const SyncKey kKey{5, 77};

// Two engines of one rank each, one transfer of kOdd bytes to each.
class SyncReceiveTest : public testing::Test {
 protected:
  SyncReceiveTest() {
    auto part = std::make_shared<PlanPart>();
    part->job = "job";
    part->tensor_names = {"a.weight", "b.weight"};
    part->ranks = {{{Role::kTrainer, 0, 0}, "a", 1, false},
                   {{Role::kRollout, 0, 0}, "b", 2, true},
                   {{Role::kRollout, 1, 0}, "b", 3, true}};
    for (uint32_t i = 0; i < 2; ++i) {
      PartTransfer& transfer = part->transfers.emplace_back();
      transfer.receives = true;
      transfer.edge = true;
      transfer.planned.id = 10 + i;
      transfer.planned.tensor = static_cast<TensorId>(i);
      transfer.planned.destination = static_cast<int32_t>(i) + 1;
      transfer.planned.bytes = kOdd;
      transfer.planned.copies.emplace_back().run = kOdd;
    }
    part_ = part;
    pins_ = {nullptr, AddRank(0), AddRank(1)};
    failures_ = std::make_shared<SyncFailures>(part_, [] {});
    Make(v1::VERIFY_FULL);
    source_.resize(kOdd);
    Fill(absl::MakeSpan(source_), 9);
    digest_ = DigestRange(0, source_);
  }

  void Make(v1::Verify verify) {
    SyncReceive::Options options;
    options.key = kKey;
    options.verify = verify;
    options.part = part_;
    options.pins = pins_;
    options.failures = failures_;
    options.on_change = [this] { ++changes_; };
    options.clock = &clock_;
    receive_ = std::make_shared<SyncReceive>(options);
  }

  RankPin AddRank(int32_t engine) {
    LocalRankInfo info;
    info.job = "job";
    info.id = {Role::kRollout, engine, 0};
    std::vector<MappedRegion> regions;
    regions.push_back(std::move(MakeTestRegion(kBytes).agent));
    return *table_.Add(info, std::move(regions), 0);
  }

  // Puts stream bytes in place, as a transport does.
  void Put(TransferId id, uint64_t begin, uint64_t end, bool damaged = false) {
    auto target = receive_->Enter(id);
    ASSERT_TRUE(target.ok()) << target.status();
    memcpy(target->memory.base + begin, source_.data() + begin, end - begin);
    if (damaged) target->memory.base[begin] ^= std::byte{1};
    receive_->Arrived(id, begin, end);
    receive_->Leave();
  }

  FakeClock clock_{1};
  RankTable table_{2, {}};
  std::shared_ptr<const PlanPart> part_;
  std::vector<RankPin> pins_;
  std::shared_ptr<SyncFailures> failures_;
  std::shared_ptr<SyncReceive> receive_;
  std::vector<std::byte> source_;
  uint64_t digest_ = 0;
  int changes_ = 0;
};

TEST_F(SyncReceiveTest, DoneMeansAllBytesAndTheSameDigest) {
  Put(10, kBytes / 2, kOdd);  // in any order
  EXPECT_FALSE(receive_->Done(0));
  Put(10, 0, kBytes / 2);
  EXPECT_FALSE(receive_->Done(0));  // not before the sender's digest was compared
  EXPECT_TRUE(receive_->Finished(10, digest_, "tcp").ok());
  EXPECT_TRUE(receive_->Done(0));
  EXPECT_FALSE(receive_->Done(1));
  EXPECT_EQ(receive_->arrivals(), 1u);
  EXPECT_EQ(receive_->bytes_done(), kOdd);
  EXPECT_FALSE(receive_->Settled());
  EXPECT_TRUE(receive_->Complete(1).ok());
  EXPECT_FALSE(receive_->Complete(2).ok());
  Put(11, 0, kOdd);
  EXPECT_TRUE(receive_->Finished(11, digest_, "tcp").ok());
  EXPECT_TRUE(receive_->Settled());
}

TEST_F(SyncReceiveTest, MissingBytesFailTheEngineOnly) {
  Put(10, 0, kBytes / 2);
  const absl::Status status = receive_->Finished(10, digest_, "tcp");
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a.weight from trainer 0 (node a) to engine 0 rank 0 (node b)"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("130972 of 262044 bytes"));
  EXPECT_TRUE(failures_->Failed(1));
  EXPECT_FALSE(failures_->Failed(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(receive_->Enter(10).status()));
  EXPECT_TRUE(receive_->Enter(11).ok());
  const std::vector<v1::TransferFailure> report = failures_->Report();
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].tensor(), "a.weight");
  EXPECT_EQ(report[0].source_node(), "a");
  EXPECT_EQ(report[0].destination_node(), "b");
}

TEST_F(SyncReceiveTest, DamagedBytesAreFound) {
  Put(10, 0, kBytes / 2, /*damaged=*/true);
  Put(10, kBytes / 2, kOdd);
  const absl::Status status = receive_->Finished(10, digest_, "tcp");
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("digest"));
}

TEST_F(SyncReceiveTest, WithoutVerifyOnlyArrivalCounts) {
  Make(v1::VERIFY_NONE);
  Put(10, 0, kBytes / 2, /*damaged=*/true);
  EXPECT_TRUE(absl::IsDataLoss(receive_->Finished(10, 0, "tcp")));
  Put(11, 0, kOdd, /*damaged=*/true);
  EXPECT_TRUE(receive_->Finished(11, 0, "tcp").ok());
}

TEST_F(SyncReceiveTest, ARepeatedTransferCountsItsLastAttempt) {
  // The first attempt breaks with damaged bytes; the second is cut otherwise.
  Put(10, 0, kBytes / 2, /*damaged=*/true);
  Put(10, kBytes / 2, kBytes / 2 + 2 * kDigestLeafBytes);
  Put(10, 0, 3 * kDigestLeafBytes);
  Put(10, 3 * kDigestLeafBytes, kBytes / 2 + kDigestLeafBytes);
  Put(10, kBytes / 2 + kDigestLeafBytes, kOdd);
  EXPECT_TRUE(receive_->Finished(10, digest_, "tcp").ok());
  // And once more, after its acknowledgement was lost.
  Put(10, 0, kOdd);
  EXPECT_TRUE(receive_->Finished(10, digest_, "tcp").ok());
  EXPECT_EQ(receive_->arrivals(), 1u);
  EXPECT_EQ(receive_->Totals()[0].transfers, 1u);
}

TEST_F(SyncReceiveTest, PartsOfOlderRangesStayCounted) {
  Put(10, 0, kOdd);
  Put(10, kDigestLeafBytes, 2 * kDigestLeafBytes);  // splits the first
  EXPECT_TRUE(receive_->Finished(10, digest_, "tcp").ok());
}

TEST_F(SyncReceiveTest, ClosedTakesNothing) {
  receive_->Close();
  EXPECT_TRUE(absl::IsFailedPrecondition(receive_->Enter(10).status()));
  EXPECT_EQ(receive_->writers(), 0);
  EXPECT_TRUE(absl::IsNotFound(receive_->Enter(99).status()));
}

TEST_F(SyncReceiveTest, GoneRanksTakeNothing) {
  table_.Remove(pins_[1]->registration_id());
  const absl::Status status = receive_->Enter(10).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("engine 0 rank 0 (node b) has gone"));
  EXPECT_TRUE(receive_->Enter(11).ok());
}

TEST_F(SyncReceiveTest, StalledRanksFail) {
  Put(11, 0, kBytes / 2);
  clock_.Advance(absl::Seconds(10));
  Put(10, 0, kBytes / 2);
  receive_->FailStalled(absl::Seconds(5));
  EXPECT_FALSE(failures_->Failed(1));
  EXPECT_TRUE(failures_->Failed(2));
  EXPECT_THAT(std::string(failures_->StatusOf(2).message()), HasSubstr("b.weight"));
  receive_->FailMissing(absl::DeadlineExceededError("too late"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(failures_->StatusOf(1)));
  EXPECT_TRUE(receive_->Settled());
}

TEST_F(SyncReceiveTest, ArrivalsOffTheLeavesAreAnError) {
  ASSERT_TRUE(receive_->Enter(10).ok());
  receive_->Arrived(10, 100, 200);
  EXPECT_EQ(failures_->StatusOf(1).code(), absl::StatusCode::kInternal);
}

TEST_F(SyncReceiveTest, TheTableWantsTheSecret) {
  ReceiveState state;
  ReceiveTable& table = *state.For("tcp");
  ASSERT_TRUE(state.Begin(receive_, absl::Now()).ok());
  EXPECT_TRUE(table.Enter(kKey, 10).ok());
  const absl::Status secret = table.Enter({kKey.sync_id, kKey.secret + 1}, 10).status();
  const absl::Status sync = table.Enter({kKey.sync_id + 1, kKey.secret}, 10).status();
  const absl::Status transfer = table.Enter(kKey, 99).status();
  EXPECT_TRUE(absl::IsNotFound(secret));
  EXPECT_EQ(secret, sync);
  EXPECT_EQ(secret, transfer);
  EXPECT_TRUE(absl::IsNotFound(table.Finished({kKey.sync_id, 0}, 10, 0)));
  EXPECT_TRUE(absl::IsAlreadyExists(state.Begin(receive_, absl::Now())));
}

TEST_F(SyncReceiveTest, AnEndedSyncKeepsItsMemoryForItsLastWriter) {
  ReceiveState state;
  ReceiveTable& table = *state.For("tcp");
  ASSERT_TRUE(state.Begin(receive_, absl::Now()).ok());
  auto target = table.Enter(kKey, 10);
  ASSERT_TRUE(target.ok());
  state.End(kKey.sync_id);
  EXPECT_TRUE(absl::IsFailedPrecondition(table.Enter(kKey, 10).status()));
  // Another sync of the same rank must not begin while the old one may still write.
  const std::shared_ptr<SyncReceive> old = receive_;
  const std::weak_ptr<LocalRank> memory = pins_[1];
  failures_ = std::make_shared<SyncFailures>(part_, [] {});
  SyncReceive::Options options;
  options.key = {6, 1};
  options.part = part_;
  options.pins = pins_;
  options.failures = failures_;
  options.on_change = [] {};
  const absl::Status status =
      state.Begin(std::make_shared<SyncReceive>(options), absl::Now() + absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("sync 5"));
  target->memory.base[0] = std::byte{1};
  table.Leave(kKey, 10);
  EXPECT_TRUE(state.Begin(std::make_shared<SyncReceive>(options), absl::Now()).ok());
  EXPECT_TRUE(absl::IsNotFound(table.Enter(kKey, 10).status()));
}

}  // namespace
}  // namespace xfer
