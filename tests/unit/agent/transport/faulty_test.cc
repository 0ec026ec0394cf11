// Each fault is seen by the checks that exist to find it.
#include "agent/transport/faulty.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/transport/harness.h"

namespace xfer {
namespace {

constexpr SyncKey kSync{1, 2};
constexpr uint64_t kStep = 64 << 10;

class FaultyTest : public ::testing::TestWithParam<bool> {
 protected:
  void Make(const FaultPlan& faults) {
    if (GetParam()) {
      harness_ = std::make_unique<TcpHarness>(faults);
    } else {
      harness_ = std::make_unique<LocalHarness>(faults);
    }
    harness_->table().Add(kSync, transfer_, transfer_.bytes, kGuard);
    endpoint_ = harness_->Connect();
    ASSERT_NE(endpoint_, nullptr);
  }
  absl::Status Send() { return SendAll(*endpoint_, kSync, transfer_, source_, kStep); }
  void ExpectWhole() {
    EXPECT_TRUE(harness_->table().bytes(kSync, 1) == source_);
    EXPECT_EQ(harness_->table().done(kSync, 1), 1);
  }

  const Transfer transfer_ = Contiguous(1, 10 * kStep);
  std::vector<std::byte> source_ = RandomBytes(10 * kStep, 1);
  std::unique_ptr<Harness> harness_;
  std::unique_ptr<Endpoint> endpoint_;
};

INSTANTIATE_TEST_SUITE_P(Over, FaultyTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "Local"; });

TEST_P(FaultyTest, HasANameThatSaysSo) {
  Make({});
  EXPECT_EQ(harness_->sender().name(), GetParam() ? "faulty(tcp)" : "faulty(local)");
}

TEST_P(FaultyTest, ADroppedRangeIsDataLossAndOnceOnly) {
  Make({.drop_range = 4});
  EXPECT_EQ(Send().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(harness_->table().done(kSync, 1), 0);
  EXPECT_EQ(Send(), absl::OkStatus());
  ExpectWhole();
}

TEST_P(FaultyTest, ACorruptRangeIsDataLossAndTheSourceStaysAsItIs) {
  Make({.corrupt_range = 7});
  const std::vector<std::byte> before = source_;
  EXPECT_EQ(Send().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(source_ == before);
  const std::vector<std::byte> got = harness_->table().bytes(kSync, 1);
  size_t different = 0;
  for (size_t i = 0; i < got.size(); ++i) different += got[i] != source_[i];
  EXPECT_EQ(different, 1u);
  EXPECT_NE(got[6 * kStep], source_[6 * kStep]);
  EXPECT_EQ(Send(), absl::OkStatus());
  ExpectWhole();
}

TEST_P(FaultyTest, AFailedRangeSaysSoAndIsMissing) {
  Make({.fail_range = 2});
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(kSync, transfer_, MemoryOf(source_), kStep)) {
    ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer_, SourceDigest(transfer_, source_)),
            absl::OkStatus());
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done).code(), absl::StatusCode::kDataLoss);
  size_t failed = 0;
  for (const Completion& completion : done) {
    if (completion.finish || completion.status.ok()) continue;
    ++failed;
    EXPECT_EQ(completion.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(completion.begin, kStep);
  }
  EXPECT_EQ(failed, 1u);
}

TEST_P(FaultyTest, ABrokenEndpointStaysBrokenAndANewOneWorks) {
  Make({.break_at_range = 5});
  const absl::Status status = Send();
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(absl::IsUnavailable(status));
  std::vector<Completion> done;
  EXPECT_FALSE(endpoint_->Poll(absl::ZeroDuration(), done).ok());
  EXPECT_FALSE(endpoint_->PostFinish(kSync, transfer_, 0).ok());
  EXPECT_EQ(harness_->table().done(kSync, 1), 0);
  ASSERT_TRUE(harness_->table().WaitUntilLeft());
}

TEST_P(FaultyTest, ALostFinishIsNeverAnswered) {
  Make({.lose_finish = 1});
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(kSync, transfer_, MemoryOf(source_), kStep)) {
    ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer_, SourceDigest(transfer_, source_)),
            absl::OkStatus());
  const absl::Time until = absl::Now() + absl::Milliseconds(200);
  while (absl::Now() < until) {
    ASSERT_EQ(endpoint_->Poll(absl::Milliseconds(20), done), absl::OkStatus());
  }
  EXPECT_EQ(done.size(), 10u);  // the ranges
  for (const Completion& completion : done) EXPECT_FALSE(completion.finish);
}

TEST_P(FaultyTest, CompletionsAreDelayed) {
  Make({.delay = absl::Milliseconds(80)});
  const absl::Time start = absl::Now();
  EXPECT_EQ(Send(), absl::OkStatus());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(80));
  ExpectWhole();
}

TEST_P(FaultyTest, AReceiverThatDoesNotVerifyWouldTakeACorruptRange) {
  // So that it is known that the digest, and nothing else, finds the flipped bit above.
  FakeReceiveTable trusting(/*verify=*/false);
  trusting.Add(kSync, transfer_, transfer_.bytes, kGuard);
  auto transport = MakeFaultyTransport(MakeLocalTransport({.threads = 1, .table = &trusting}),
                                       {.corrupt_range = 1});
  auto endpoint = *transport->Connect({"self", 1, ""}, absl::InfiniteFuture());
  EXPECT_EQ(SendAll(*endpoint, kSync, transfer_, source_, kStep), absl::OkStatus());
  EXPECT_FALSE(trusting.bytes(kSync, 1) == source_);
}

}  // namespace
}  // namespace xfer
