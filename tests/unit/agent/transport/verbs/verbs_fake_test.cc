// The verbs transport over the fake devices: the conformance suite, and faults at chosen requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/agent/transport/verbs/fake_ibverbs.h"
#include "tests/unit/agent/transport/verbs/verbs_harness.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SyncKey kSync{5, 0x1234567890abcdef};

class VerbsFakeTest : public ::testing::Test {
 protected:
  static verbs::Tuning Tuned(const std::string& nics) {
    verbs::Tuning tuning = TestTuning(nics);
    tuning.chunk_bytes = 64 << 10;
    tuning.list_bytes = 256 << 10;
    tuning.queue_bytes = 1 << 20;
    return tuning;
  }

  void SetUp() override {
    live_before_ = fake_ibverbs::LiveObjects();
    pair_ = std::make_unique<VerbsPair>(&table_, Tuned("rxe0a+rxe1a"), Tuned("rxe0b+rxe1b"));
    ASSERT_EQ(pair_->sender->Register(MemoryOf(source_)), absl::OkStatus());
    ASSERT_EQ(pair_->receiver->Register(MemoryOf(destination_)), absl::OkStatus());
    table_.Add(kSync, transfer_, MemoryOf(destination_));
    Connect();
  }
  void TearDown() override {
    fake_ibverbs::Go();
    endpoint_.reset();
    EXPECT_TRUE(table_.WaitUntilLeft());
    EXPECT_THAT(table_.breaches(), IsEmpty());
    pair_.reset();
    fake_ibverbs::Reset();
    EXPECT_EQ(fake_ibverbs::LiveObjects(), live_before_);
  }

  void Connect() {
    auto endpoint = pair_->sender->Connect(pair_->peer(), absl::Now() + absl::Seconds(10));
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
  }
  absl::Status Send() { return SendAll(*endpoint_, kSync, transfer_, source_, 512 << 10); }
  // Posts everything; returns when the devices have carried out that many requests and stand still.
  void SendUpTo(uint64_t requests) {
    fake_ibverbs::StopAfter(requests);
    for (const SendRange& range : Ranges(kSync, transfer_, MemoryOf(source_), 512 << 10)) {
      ASSERT_EQ(Post(*endpoint_, range, done_), absl::OkStatus());
    }
    ASSERT_EQ(endpoint_->PostFinish(kSync, transfer_, SourceDigest(transfer_, source_)),
              absl::OkStatus());
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (absl::Now() < deadline &&
           fake_ibverbs::Requests("rxe0a") + fake_ibverbs::Requests("rxe1a") <
               requests + requests_before_) {
      ASSERT_EQ(endpoint_->Poll(absl::Milliseconds(1), done_), absl::OkStatus());
    }
    ASSERT_TRUE(fake_ibverbs::AwaitStopped());
  }
  void ExpectWhole() {
    EXPECT_EQ(WaitForFinish(*endpoint_, 1, done_), absl::OkStatus());
    EXPECT_TRUE(destination_ == source_);
    EXPECT_EQ(table_.done(kSync, 1), 1);
    EXPECT_EQ(done_.size(), transfer_.bytes / (512 << 10) + 1) << "each range is completed once";
  }

  int live_before_ = 0;
  FakeReceiveTable table_;
  const Transfer transfer_ = Contiguous(1, 8 << 20);
  std::vector<std::byte> source_ = RandomBytes(8 << 20, 3);
  std::vector<std::byte> destination_ = std::vector<std::byte>(8 << 20, kGuard);
  uint64_t requests_before_ = fake_ibverbs::Requests("rxe0a") + fake_ibverbs::Requests("rxe1a");
  std::unique_ptr<VerbsPair> pair_;
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<Completion> done_;
};

TEST_F(VerbsFakeTest, ARangeOfABufferThatWasNotRegisteredIsSentAndForgotten) {
  for (uint64_t begin = 0; begin < transfer_.bytes; begin += 512 << 10) {
    const std::vector<std::byte> staged(
        source_.begin() + static_cast<ptrdiff_t>(begin),
        source_.begin() + static_cast<ptrdiff_t>(begin + (512 << 10)));
    SendRange range;
    range.sync = kSync;
    range.transfer = &transfer_;
    // As if the whole stream lay around it.
    range.source = {
        reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(staged.data()) - begin),
        transfer_.bytes};
    range.begin = begin;
    range.end = begin + (512 << 10);
    EXPECT_EQ(endpoint_->PostRange(range).code(), absl::StatusCode::kFailedPrecondition);
    range.unregistered = true;
    ASSERT_EQ(Post(*endpoint_, range, done_), absl::OkStatus());
    const size_t before = done_.size();
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (done_.size() == before && absl::Now() < deadline) {
      ASSERT_EQ(endpoint_->Poll(absl::Milliseconds(10), done_), absl::OkStatus());
    }
  }
  ASSERT_EQ(endpoint_->PostFinish(kSync, transfer_, SourceDigest(transfer_, source_)),
            absl::OkStatus());
  ExpectWhole();
}

TEST_F(VerbsFakeTest, BothRailsCarryTheBytes) {
  const uint64_t before = fake_ibverbs::Requests("rxe0a");
  ASSERT_EQ(Send(), absl::OkStatus());
  const uint64_t first = fake_ibverbs::Requests("rxe0a") - before;
  // The fake device prefers one rail, so this is not half.
  EXPECT_GT(first, (transfer_.bytes >> 16) / 8);
  EXPECT_LT(first, (transfer_.bytes >> 16) * 7 / 8);
}

// Whatever request is the one that fails, the other rail brings all bytes.
TEST_F(VerbsFakeTest, ARailMayFailAtAnyRequest) {
  for (uint64_t n = 1; n < 40; n += 3) {
    SCOPED_TRACE(n);
    std::fill(destination_.begin(), destination_.end(), kGuard);
    fake_ibverbs::FailRequest(n % 2 == 0 ? "rxe0a" : "rxe1a", n, IBV_WC_RETRY_EXC_ERR);
    ASSERT_EQ(Send(), absl::OkStatus());
    EXPECT_TRUE(destination_ == source_);
    Connect();
  }
  EXPECT_EQ(table_.done(kSync, 1), 13);
}

TEST_F(VerbsFakeTest, APortThatGoesDownIsLeftAtOnce) {
  SendUpTo(20);
  fake_ibverbs::SetPort("rxe1a", /*up=*/false, /*tell=*/true);
  fake_ibverbs::Go();
  ExpectWhole();
}

TEST_F(VerbsFakeTest, APortThatGoesDownUntoldIsLeftWhenRetriesRunOut) {
  SendUpTo(20);
  fake_ibverbs::SetPort("rxe1b", /*up=*/false, /*tell=*/false);
  fake_ibverbs::Go();
  ExpectWhole();
}

TEST_F(VerbsFakeTest, NewConnectionsUseThePortsThatAreUp) {
  fake_ibverbs::SetPort("rxe1a", /*up=*/false, /*tell=*/false);
  Connect();
  const uint64_t before = fake_ibverbs::Requests("rxe1a");
  ASSERT_EQ(Send(), absl::OkStatus());
  EXPECT_EQ(fake_ibverbs::Requests("rxe1a"), before);
  fake_ibverbs::SetPort("rxe1a", /*up=*/true, /*tell=*/true);
  Connect();
  ASSERT_EQ(Send(), absl::OkStatus());
  EXPECT_GT(fake_ibverbs::Requests("rxe1a"), before);
}

TEST_F(VerbsFakeTest, WithoutRailsTheEndpointFailsAndSaysWhy) {
  SendUpTo(20);
  fake_ibverbs::SetPort("rxe0b", false, false);
  fake_ibverbs::SetPort("rxe1b", false, false);
  fake_ibverbs::Go();
  const absl::Status status = WaitForFinish(*endpoint_, 1, done_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("verbs to node 'receiver': rxe"));
  EXPECT_THAT(message, HasSubstr("a:1 GID 192.0.2."));
  EXPECT_THAT(message, HasSubstr("transport retry counter exceeded (status 12"));
  EXPECT_THAT(message, HasSubstr("the peer does not answer"));
  EXPECT_EQ(endpoint_->PostFinish(kSync, transfer_, 0).code(), absl::StatusCode::kAborted);
}

TEST_F(VerbsFakeTest, APeerThatDiesIsNamed) {
  SendUpTo(20);
  pair_->KillReceiver();
  fake_ibverbs::Go();
  const absl::Status status = WaitForFinish(*endpoint_, 1, done_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("verbs to node 'receiver'"));
}

TEST_F(VerbsFakeTest, DestinationMemoryThatGoesIsWrittenNoMore) {
  SendUpTo(20);
  pair_->receiver->Unregister(MemoryOf(destination_));
  EXPECT_TRUE(table_.WaitUntilLeft());
  std::fill(destination_.begin(), destination_.end(), std::byte{0x11});
  fake_ibverbs::Go();
  EXPECT_FALSE(WaitForFinish(*endpoint_, 1, done_).ok());
  EXPECT_EQ(std::count(destination_.begin(), destination_.end(), std::byte{0x11}), 8 << 20);
}

TEST_F(VerbsFakeTest, SourceMemoryThatGoesFailsTheEndpoint) {
  SendUpTo(20);
  pair_->sender->Unregister(MemoryOf(source_));
  fake_ibverbs::Go();
  const absl::Status status = WaitForFinish(*endpoint_, 1, done_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unregistered while it was being sent"));
}

TEST_F(VerbsFakeTest, AKeyThatTheDeviceRefusesIsFinal) {
  fake_ibverbs::FailRequest("rxe0a", 5, IBV_WC_REM_ACCESS_ERR);
  const absl::Status status = Send();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rxe0a:1 GID 192.0.2.2 -> rxe0b:1 GID 192.0.2.3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("has the destination's rank left"));
}

TEST_F(VerbsFakeTest, NothingMovingIsNoticed) {
  verbs::Tuning tuning = Tuned("rxe0a");
  tuning.stall_timeout = absl::Seconds(1);
  auto sender = MakeVerbsTransport({"sender", 8, &pair_->unused, pair_->control, tuning});
  ASSERT_TRUE(sender.ok()) << sender.status();
  ASSERT_EQ((*sender)->Register(MemoryOf(source_)), absl::OkStatus());
  auto endpoint = (*sender)->Connect(pair_->peer(), absl::Now() + absl::Seconds(10));
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  fake_ibverbs::StopAfter(3);
  const absl::Time start = absl::Now();
  const absl::Status status = SendAll(**endpoint, kSync, transfer_, source_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing has moved for"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(12));
}

// What a peer may send that is not as it should be.
class VerbsServeTest : public VerbsFakeTest {
 protected:
  absl::Status Serve(const v1::VerbsRequest& request) {
    return pair_->receiver->Serve(request).status();
  }
};

TEST_F(VerbsServeTest, RefusesWhatCannotBe) {
  v1::VerbsRequest request;
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kUnavailable);  // no session
  request.set_session(1);
  request.mutable_finish();
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kUnavailable);
  v1::VerbsConnect& connect = *request.mutable_connect();
  connect.set_expected_incarnation(7);
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kInvalidArgument);  // no rails
  connect.set_receive_requests(16);
  v1::VerbsRail& rail = *connect.add_rails();
  rail.set_device("rxe0b");
  rail.set_number(1);
  rail.set_mtu(4096);
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kInvalidArgument);  // no queue pairs, no GID
  rail.set_gid(std::string(16, 'x'));
  for (int i = 0; i < 65; ++i) rail.add_queue_pairs();
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kInvalidArgument);  // too many
  while (rail.queue_pairs_size() > 1) rail.mutable_queue_pairs()->RemoveLast();
  rail.set_device("rxe0");
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kNotFound);  // none of its rails
  rail.set_device("rxe0b");
  connect.set_receive_requests(1 << 20);
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(VerbsServeTest, AFinishMustFitWhatWasExposed) {
  v1::VerbsRequest connect;
  connect.mutable_connect()->set_expected_incarnation(7);
  connect.mutable_connect()->set_receive_requests(4);
  v1::VerbsRail& rail = *connect.mutable_connect()->add_rails();
  rail.set_device("rxe0b");
  rail.set_number(1);
  rail.set_mtu(4096);
  rail.set_gid(std::string(16, 'x'));
  rail.add_queue_pairs();
  const auto connected = pair_->receiver->Serve(connect);
  ASSERT_TRUE(connected.ok()) << connected.status();
  v1::VerbsRequest request;
  request.set_session(connected->connect().session());
  const auto finish = [&](std::vector<std::pair<uint64_t, uint64_t>> ranges, uint32_t pair) {
    v1::VerbsRequest expose = request;
    v1::VerbsTransfer& transfer = *expose.mutable_expose()->add_transfers();
    transfer.set_sync_id(kSync.sync_id);
    transfer.set_secret(kSync.secret);
    transfer.set_transfer(1);
    transfer.set_bytes(transfer_.bytes);
    const auto exposed = pair_->receiver->Serve(expose);
    EXPECT_TRUE(exposed.ok() && exposed->expose().targets(0).outcome().code() == 0);
    v1::VerbsFinished& finished = *request.mutable_finish()->add_transfers();
    finished.set_sync_id(kSync.sync_id);
    finished.set_secret(kSync.secret);
    finished.set_transfer(1);
    for (const auto& [begin, end] : ranges) {
      finished.add_ranges()->set_begin(begin);
      finished.mutable_ranges()->rbegin()->set_end(end);
    }
    finished.add_notices()->set_queue_pair(pair);
    const auto reply = pair_->receiver->Serve(request);
    request.clear_finish();
    return reply.ok() ? static_cast<absl::StatusCode>(reply->finish().outcomes(0).code())
                      : reply.status().code();
  };
  EXPECT_EQ(finish({{0, 4096}}, 0), absl::StatusCode::kDataLoss);  // well-formed, and too little
  EXPECT_EQ(finish({{0, 4096}}, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish({{0, 4097}}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish({{4096, 4096}}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish({{4096, 8192}, {0, 4096}}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish({{0, 8192}, {4096, 12288}}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish({{0, transfer_.bytes + 4096}}, 0), absl::StatusCode::kInvalidArgument);
  v1::VerbsRequest unexposed = request;
  unexposed.mutable_finish()->add_transfers()->set_transfer(1);
  EXPECT_EQ(pair_->receiver->Serve(unexposed)->finish().outcomes(0).code(),
            static_cast<int>(absl::StatusCode::kNotFound));
  request.mutable_close();
  EXPECT_EQ(Serve(request), absl::OkStatus());
  EXPECT_EQ(Serve(request).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace xfer
