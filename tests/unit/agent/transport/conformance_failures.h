// The second half of the conformance suite: what must not work, and how it must fail. Included by
// conformance.h.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_CONFORMANCE_FAILURES_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_CONFORMANCE_FAILURES_H_

#include "tests/unit/agent/transport/conformance.h"

namespace xfer {

TEST_P(TransportConformance, AWrongSecretIsNotFoundAndWritesNothing) {
  const Transfer transfer = Contiguous(1, 3 << 20);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 9);
  Expect(transfer, transfer.bytes);
  const SyncKey guessed{kSync.sync_id, kSync.secret + 1};
  EXPECT_EQ(SendAll(*endpoint_, guessed, transfer, source).code(), absl::StatusCode::kNotFound);
  ExpectUntouched(1);
  // The endpoint is as good as before.
  EXPECT_EQ(SendAll(*endpoint_, kSync, transfer, source), absl::OkStatus());
  ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, AnUnknownTransferDoesNotDisturbTheOthers) {
  const Transfer known = Contiguous(1, 2 << 20);
  const Transfer unknown = Contiguous(2, 2 << 20);
  std::vector<std::byte> source = RandomBytes(2 << 20, 10);
  Expect(known, known.bytes);
  std::vector<Completion> done;
  for (uint64_t begin = 0; begin < known.bytes; begin += 256 << 10) {
    for (const Transfer* transfer : {&unknown, &known}) {
      const SendRange range{kSync, transfer, MemoryOf(source), begin, begin + (256 << 10)};
      ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
    }
  }
  const uint64_t digest = SourceDigest(known, source);
  ASSERT_EQ(endpoint_->PostFinish(kSync, unknown, digest), absl::OkStatus());
  ASSERT_EQ(endpoint_->PostFinish(kSync, known, digest), absl::OkStatus());
  EXPECT_EQ(WaitForFinish(*endpoint_, 2, done).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done), absl::OkStatus());
  ExpectApplied(known, source);
}

TEST_P(TransportConformance, AWrongDigestIsDataLossAndCanBeRepaired) {
  const Transfer transfer = Contiguous(1, 1 << 20);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 11);
  Expect(transfer, transfer.bytes);
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 1 << 20)) {
    ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, source) + 1),
            absl::OkStatus());
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(table().done(kSync, 1), 0);
  EXPECT_EQ(SendAll(*endpoint_, kSync, transfer, source), absl::OkStatus());
  ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, AMissingRangeIsDataLoss) {
  const Transfer transfer = Contiguous(1, 4 << 20);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 12);
  Expect(transfer, transfer.bytes);
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 1 << 20)) {
    if (range.begin == 2 << 20) continue;
    ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, source)),
            absl::OkStatus());
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done).code(), absl::StatusCode::kDataLoss);
}

TEST_P(TransportConformance, AFinishWithoutAnyRangeIsDataLoss) {
  const Transfer transfer = Contiguous(1, 4096);
  Expect(transfer, transfer.bytes);
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, 0), absl::OkStatus());
  std::vector<Completion> done;
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done).code(), absl::StatusCode::kDataLoss);
  ExpectUntouched(1);
}

TEST_P(TransportConformance, ALongerPlanAtTheSenderIsRefused) {
  Expect(Contiguous(1, 1 << 20), 2 << 20);
  const Transfer longer = Contiguous(1, 2 << 20);
  std::vector<std::byte> source = RandomBytes(longer.bytes, 13);
  EXPECT_EQ(SendAll(*endpoint_, kSync, longer, source).code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::byte> got = table().bytes(kSync, 1);
  EXPECT_TRUE(
      std::all_of(got.begin() + (1 << 20), got.end(), [](std::byte b) { return b == kGuard; }));
}

TEST_P(TransportConformance, PostRefusesWhatCannotBeRight) {
  Transfer transfer = Contiguous(1, 10000);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 15);
  Expect(transfer, transfer.bytes);
  const Memory memory = MemoryOf(source);
  const auto post = [&](Memory from, uint64_t begin, uint64_t end) {
    return endpoint_->PostRange({kSync, &transfer, from, begin, end}).code();
  };
  EXPECT_EQ(post(memory, 1, 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(post(memory, 0, 4097), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(post(memory, 4096, 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(post(memory, 8192, 12288), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(post({memory.base, 9999}, 0, 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(endpoint_->PostRange({kSync, nullptr, memory, 0, 4096}).code(),
            absl::StatusCode::kInvalidArgument);
  transfer.conversion.to = DType::kF32;
  EXPECT_EQ(post(memory, 0, 4096), absl::StatusCode::kInvalidArgument);
  transfer.conversion.to = transfer.conversion.from;
  EXPECT_EQ(SendAll(*endpoint_, kSync, transfer, source), absl::OkStatus());
  ExpectApplied(transfer, source);
}

TEST_P(TransportConformance, ADestroyedEndpointReadsTheSourceNoMore) {
  const Transfer transfer = Contiguous(1, 16 << 20);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 20);
  const std::vector<std::byte> original = source;
  Expect(transfer, transfer.bytes);
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 1 << 20)) {
    ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, SourceDigest(transfer, source)),
            absl::OkStatus());
  endpoint_.reset();
  std::fill(source.begin(), source.end(), std::byte{0xDD});
  ASSERT_TRUE(table().WaitUntilLeft());
  endpoint_ = harness_->Connect();
  // Once another transfer has come through, what was under way has settled.
  const Transfer next = Contiguous(2, 4096);
  Expect(next, 4096);
  EXPECT_EQ(SendAll(*endpoint_, kSync, next, source), absl::OkStatus());
  const std::vector<std::byte> got = table().bytes(kSync, 1);
  uint64_t foreign = 0;
  for (size_t at = 0; at < got.size(); at += kDigestLeafBytes) {
    if (std::memcmp(&got[at], &original[at], kDigestLeafBytes) == 0) continue;
    for (size_t i = at; i < at + kDigestLeafBytes; ++i) {
      foreign += got[i] != kGuard && got[i] != original[i];
    }
  }
  EXPECT_EQ(foreign, 0u);
}

TEST_P(TransportConformance, APeerThatGoesFailsTheEndpointAndIsNamed) {
  const Transfer transfer = Contiguous(1, 16 << 20);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 21);
  Expect(transfer, transfer.bytes);
  table().Hold();
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(kSync, transfer, MemoryOf(source), 1 << 20)) {
    ASSERT_EQ(Post(*endpoint_, range, done), absl::OkStatus());
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer, 0), absl::OkStatus());
  ASSERT_TRUE(table().WaitUntilEntered());
  std::thread release([&] { table().Release(); });
  const bool killed = harness_->KillReceiver();
  release.join();
  if (!killed) {
    endpoint_.reset();  // before the memory that it reads
    GTEST_SKIP() << "the receiver is this very transport";
  }
  const absl::Status status = WaitForFinish(*endpoint_, 1, done);
  if (table().done(kSync, 1) == 0) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), ::testing::HasSubstr("receiver"));
    const absl::Status again = endpoint_->PostRange({kSync, &transfer, MemoryOf(source), 0, 4096});
    EXPECT_FALSE(again.ok());
    EXPECT_FALSE(absl::IsUnavailable(again));  // which would say: poll and try again
  }
}

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_CONFORMANCE_FAILURES_H_
