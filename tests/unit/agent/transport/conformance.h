// The one suite that every transport must pass. A transport's test includes this file and
// instantiates TransportConformance with the ways to make it.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_CONFORMANCE_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/unit/agent/transport/harness.h"

namespace xfer {

inline constexpr SyncKey kSync{5, 0x1234567890abcdef};

class TransportConformance : public ::testing::TestWithParam<HarnessFactory> {
 protected:
  void SetUp() override {
    harness_ = GetParam().make();
    endpoint_ = harness_->Connect();
    ASSERT_NE(endpoint_, nullptr);
  }
  void TearDown() override {
    endpoint_.reset();
    EXPECT_TRUE(table().WaitUntilLeft());
    EXPECT_THAT(table().breaches(), ::testing::IsEmpty());
  }

  FakeReceiveTable& table() { return harness_->table(); }
  void Expect(const Transfer& transfer, uint64_t region_bytes, const SyncKey& sync = kSync) {
    table().Add(sync, transfer, region_bytes, kGuard);
  }
  // Every byte of the destination's region is as it must be, those that the transfer does not touch
  // too.
  void ExpectApplied(const Transfer& transfer, const std::vector<std::byte>& source,
                     const SyncKey& sync = kSync) {
    const std::vector<std::byte> got = table().bytes(sync, transfer.id);
    EXPECT_TRUE(got == Applied(transfer, source, std::vector<std::byte>(got.size(), kGuard)));
    EXPECT_EQ(table().done(sync, transfer.id), 1);
  }
  void ExpectUntouched(TransferId transfer, const SyncKey& sync = kSync) {
    const std::vector<std::byte> got = table().bytes(sync, transfer);
    EXPECT_TRUE(got == std::vector<std::byte>(got.size(), kGuard));
    EXPECT_EQ(table().done(sync, transfer), 0);
  }

  std::unique_ptr<Harness> harness_;
  std::unique_ptr<Endpoint> endpoint_;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

TEST_P(TransportConformance, MovesAWholeTransfer) {
  const Transfer transfer = Contiguous(3, (3 << 20) + 123, 64, 1000);
  std::vector<std::byte> source = RandomBytes(transfer.bytes + 64, 1);
  Expect(transfer, transfer.bytes + 2000);
  ASSERT_EQ(SendAll(*endpoint_, kSync, transfer, source, 64 << 20), absl::OkStatus());
  ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, MovesOneByte) {
  const Transfer transfer = Contiguous(0, 1, 5, 6);
  std::vector<std::byte> source = RandomBytes(16, 2);
  Expect(transfer, 16);
  ASSERT_EQ(SendAll(*endpoint_, kSync, transfer, source), absl::OkStatus());
  ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, MovesStridedCopiesWithLevels) {
  const std::vector<Transfer> transfers = {
      // Rows, long and short, dense on one side and not on the other.
      MakeTransfer(0, {Copy{0, 512, 4096, {{300, 8192, 4096}}}}),
      MakeTransfer(1, {Copy{100, 0, 512, {{2000, 512, 1536}}}}),
      MakeTransfer(2, {Copy{7, 3, 6, {{100, 2000, 700}, {50, 16, 8}}}}),
      // Three levels, backwards on one side.
      MakeTransfer(3, {Copy{90000, 11, 40, {{9, -10000, 20000}, {20, 400, 500}, {4, 50, 60}}}}),
      // Several copies, of which the second starts within a leaf.
      MakeTransfer(4, {Copy{0, 100000, 10001, {}}, Copy{20000, 0, 300, {{250, 301, 302}}},
                       Copy{500000, 200000, 700000, {}}}),
      MakeTransfer(5, {Copy{1, 0, 2, {{100000, 4, 6}}}}),
  };
  std::vector<std::byte> source = RandomBytes(3 << 20, 3);
  for (const Transfer& transfer : transfers) {
    SCOPED_TRACE(transfer.id);
    Expect(transfer, 4 << 20);
    ASSERT_EQ(SendAll(*endpoint_, kSync, transfer, source, 128 << 10), absl::OkStatus());
    ExpectApplied(transfer, source);
  }
}

TEST_P(TransportConformance, TakesRangesInAnyOrder) {
  std::vector<Transfer> transfers;
  for (TransferId id = 0; id < 4; ++id)
    transfers.push_back(Contiguous(id, 900000 + id, id * 10, 4096));
  std::vector<std::byte> source = RandomBytes(1 << 20, 4);
  std::vector<SendRange> ranges;
  for (const Transfer& transfer : transfers) {
    Expect(transfer, 1 << 20);
    for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 12288))
      ranges.push_back(range);
  }
  std::shuffle(ranges.begin(), ranges.end(), std::mt19937(5));
  std::vector<Completion> done;
  for (const SendRange& range : ranges) ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  for (const Transfer& transfer : transfers) {
    ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, source)),
              absl::OkStatus());
  }
  ASSERT_EQ(PollFor(*endpoint_, ranges.size() + transfers.size(), done), absl::OkStatus());
  EXPECT_EQ(done.size(), ranges.size() + transfers.size());
  for (const Completion& completion : done) EXPECT_EQ(completion.status, absl::OkStatus());
  for (const Transfer& transfer : transfers) ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, MovesThousandsOfTinyTransfers) {
  constexpr TransferId kCount = 3000;
  std::vector<std::byte> source = RandomBytes(1 << 16, 6);
  std::vector<Transfer> transfers;
  std::mt19937 random(7);
  for (TransferId id = 0; id < kCount; ++id) {
    transfers.push_back(Contiguous(id, 1 + random() % 5000, random() % 50000, random() % 100));
    Expect(transfers.back(), 6000);
  }
  std::vector<Completion> done;
  size_t posted = 0;
  for (const Transfer& transfer : transfers) {
    for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 4096)) {
      ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
      ++posted;
    }
    ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, source)),
              absl::OkStatus());
    ++posted;
  }
  ASSERT_EQ(PollFor(*endpoint_, posted, done), absl::OkStatus());
  for (const Completion& completion : done) ASSERT_EQ(completion.status, absl::OkStatus());
  for (const Transfer& transfer : transfers) ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, AFinishWaitsForItsRangesAndForTheReceiver) {
  const Transfer transfer = Contiguous(1, 6 << 20);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 8);
  Expect(transfer, transfer.bytes);
  table().Hold();
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 1 << 20)) {
    ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, source)),
            absl::OkStatus());
  const absl::Time until = absl::Now() + absl::Milliseconds(150);
  while (absl::Now() < until)
    ASSERT_EQ(endpoint_->Poll(absl::Milliseconds(10), done), absl::OkStatus());
  EXPECT_FALSE(std::any_of(done.begin(), done.end(), [](const Completion& c) { return c.finish; }));
  table().Release();
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done), absl::OkStatus());
  ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, ASenderMayStageItsBytes) {
  // The receiver's transfer starts in strided memory; the sender has gathered it to the front of a
  // buffer.
  const Transfer planned = MakeTransfer(1, {Copy{0, 64, 1000, {{700, 3000, 2000}}}});
  const Transfer staged = MakeTransfer(1, {Copy{0, 64, 1000, {{700, 1000, 2000}}}});
  std::vector<std::byte> source = RandomBytes(staged.bytes, 14);
  Expect(planned, 2 << 20);
  ASSERT_EQ(SendAll(*endpoint_, kSync, staged, source, 64 << 10), absl::OkStatus());
  ExpectApplied(staged, source);
}

TEST_P(TransportConformance, AFullQueueIsUnavailableUntilPolled) {
  const Transfer transfer = Contiguous(1, 20 << 20);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 16);
  Expect(transfer, transfer.bytes);
  table().Hold();
  std::vector<Completion> done;
  bool was_full = false;
  for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 4096)) {
    absl::Status status = endpoint_->PostRange(range);
    if (absl::IsUnavailable(status)) {
      was_full = true;
      table().Release();
      status = Post(*endpoint_, range, done);
    }
    ASSERT_EQ(status, absl::OkStatus());
  }
  EXPECT_TRUE(was_full);
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, source)),
            absl::OkStatus());
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done), absl::OkStatus());
  ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, PollWaitsAsLongAsItIsToldTo) {
  std::vector<Completion> done;
  absl::Time start = absl::Now();
  EXPECT_EQ(endpoint_->Poll(absl::ZeroDuration(), done), absl::OkStatus());
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(500));
  start = absl::Now();
  EXPECT_EQ(endpoint_->Poll(absl::Milliseconds(60), done), absl::OkStatus());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(55));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(done.empty());
}

TEST_P(TransportConformance, SyncsWithTheSameTransferIdsAreApart) {
  const SyncKey other{kSync.sync_id + 1, 99};
  const Transfer transfer = Contiguous(1, 1 << 20);
  std::vector<std::byte> one = RandomBytes(transfer.bytes, 17);
  std::vector<std::byte> two = RandomBytes(transfer.bytes, 18);
  Expect(transfer, transfer.bytes);
  Expect(transfer, transfer.bytes, other);
  std::vector<Completion> done;
  for (uint64_t begin = 0; begin < transfer.bytes; begin += 4096) {
    ASSERT_EQ(Post(*endpoint_, {kSync, &transfer, MemoryOf(one), begin, begin + 4096}, done),
              absl::OkStatus());
    ASSERT_EQ(Post(*endpoint_, {other, &transfer, MemoryOf(two), begin, begin + 4096}, done),
              absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, one)), absl::OkStatus());
  ASSERT_EQ(endpoint_->PostFinish(other, transfer, SourceDigest(transfer, two)), absl::OkStatus());
  ASSERT_EQ(PollFor(*endpoint_, 2 * 256 + 2, done), absl::OkStatus());
  ExpectApplied(transfer, one);
  ExpectApplied(transfer, two, other);
}

TEST_P(TransportConformance, EndpointsWorkSideBySide) {
  constexpr TransferId kThreads = 3;
  std::vector<std::byte> source = RandomBytes(4 << 20, 19);
  std::vector<Transfer> transfers;
  for (TransferId id = 0; id < kThreads; ++id) {
    transfers.push_back(
        MakeTransfer(id, {Copy{id, 17, 1 << 20, {}}, Copy{0, 2 << 20, 600, {{900, 601, 700}}}}));
    Expect(transfers.back(), 4 << 20);
  }
  std::vector<std::thread> threads;
  for (TransferId id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::unique_ptr<Endpoint> own = harness_->Connect();
      ASSERT_NE(own, nullptr);
      EXPECT_EQ(SendAll(*own, kSync, transfers[id], source, 32 << 10), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Transfer& transfer : transfers) ExpectApplied(transfer, source);
}

inline std::string HarnessName(const ::testing::TestParamInfo<HarnessFactory>& info) {
  return info.param.name;
}

}  // namespace xfer

#include "tests/unit/agent/transport/conformance_failures.h"  // IWYU pragma: export

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_CONFORMANCE_H_
