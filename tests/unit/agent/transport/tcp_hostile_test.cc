// Peers that send what they should not, too much of it, or half of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/unit/agent/transport/harness.h"
#include "tests/unit/agent/transport/raw_peer.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SyncKey kSync{1, 2};

wire::Frame Range(TransferId transfer, uint64_t begin, uint64_t end) {
  wire::Frame frame;
  frame.sync = kSync;
  frame.transfer = transfer;
  frame.a = begin;
  frame.b = end;
  return frame;
}

wire::Frame Finish(TransferId transfer, uint64_t announced, uint64_t digest) {
  wire::Frame frame = Range(transfer, announced, digest);
  frame.type = wire::FrameType::kFinish;
  return frame;
}

class TcpHostileTest : public ::testing::Test {
 protected:
  void Start(absl::Duration stall_timeout = absl::Seconds(30), int max_connections = 100) {
    TcpOptions options = TestTcpOptions("here", 7, &table_);
    options.stall_timeout = stall_timeout;
    options.max_connections = max_connections;
    transport_ = *MakeTcpTransport(options);
    table_.Add(kSync, transfer_, transfer_.bytes, kGuard);
  }
  // The transport still serves honest senders.
  void ExpectAlive() {
    std::vector<std::byte> source = RandomBytes(transfer_.bytes, 9);
    auto endpoint =
        transport_->Connect({"here", 7, absl::StrCat("127.0.0.1:", transport_->port())}, Soon());
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(SendAll(**endpoint, kSync, alive_, source), absl::OkStatus());
    endpoint->reset();
    EXPECT_TRUE(table_.WaitUntilLeft());
    EXPECT_THAT(table_.breaches(), IsEmpty());
  }
  void SetUp() override { table_.Add(kSync, alive_, alive_.bytes, kGuard); }

  const Transfer transfer_ = Contiguous(1, 100000);
  const Transfer alive_ = Contiguous(1000, 100000);
  const std::string payload_ = std::string(100000, 'p');
  uint64_t digest_ = DigestRange(
      0, absl::MakeSpan(reinterpret_cast<const std::byte*>(payload_.data()), payload_.size()));
  FakeReceiveTable table_;
  std::unique_ptr<TcpTransport> transport_;
};

TEST_F(TcpHostileTest, TheRawSenderIsUnderstood) {
  Start();
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  peer.WriteFrame(Range(1, 0, 100000));
  peer.Write(payload_);
  peer.WriteFrame(Finish(1, 100000, digest_));
  EXPECT_EQ(peer.ReadAnswer(), absl::OkStatus());
  EXPECT_EQ(table_.done(kSync, 1), 1);
}

TEST_F(TcpHostileTest, BytesMayComeOneAtATime) {
  Start();
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  const auto header = wire::EncodeFrame(Range(1, 0, 100000));
  std::string bytes(reinterpret_cast<const char*>(header.data()), header.size());
  bytes += payload_;
  std::mt19937 random(1);
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = at < 100 ? 1 : 1 + random() % 3000;
    peer.Write(bytes.substr(at, n));
    at += n;
  }
  peer.WriteFrame(Finish(1, 100000, digest_));
  EXPECT_EQ(peer.ReadAnswer(), absl::OkStatus());
  EXPECT_THAT(table_.breaches(), IsEmpty());
}

TEST_F(TcpHostileTest, GarbageInPlaceOfAHelloClosesTheConnection) {
  Start();
  std::mt19937_64 random(1);
  for (int i = 0; i < 20; ++i) {
    std::string garbage(40 + random() % 5000, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    RawSender peer(transport_->port());
    peer.Write(garbage);
    EXPECT_TRUE(peer.IsClosed());
  }
  ExpectAlive();
}

TEST_F(TcpHostileTest, GarbageInPlaceOfAFrameClosesTheConnection) {
  Start();
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  peer.Write(std::string(1000, 'g'));
  EXPECT_TRUE(peer.IsClosed());
  ExpectAlive();
}

TEST_F(TcpHostileTest, RandomFramesNeverWriteOutsideOrHarmOthers) {
  Start();
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    RawSender peer(transport_->port());
    ASSERT_EQ(peer.Hello(7, 1000 + i), absl::OkStatus());
    wire::Frame frame = Range(random() % 3, random() % 50 * 2048, random() % 60 * 2048);
    frame.type = static_cast<wire::FrameType>(random() % 5);
    if (random() % 4 == 0) frame.b = random();
    peer.WriteFrame(frame);
    peer.Write(payload_.substr(0, random() % 100000));
  }
  ExpectAlive();
  const std::vector<std::byte> got = table_.bytes(kSync, 1);
  for (const std::byte b : got) ASSERT_TRUE(b == kGuard || b == std::byte{'p'});
}

TEST_F(TcpHostileTest, HugeLengthsCloseTheConnection) {
  Start();
  for (const uint64_t end :
       {wire::kMaxPayloadBytes + 1, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()}) {
    RawSender peer(transport_->port());
    ASSERT_EQ(peer.Hello(7), absl::OkStatus());
    peer.WriteFrame(Range(1, 0, end));
    EXPECT_TRUE(peer.IsClosed());
  }
  ExpectAlive();
}

TEST_F(TcpHostileTest, ARangeBeyondTheTransferIsDrainedAndAnswered) {
  Start();
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  peer.WriteFrame(Range(1, 98304, 198304));
  peer.Write(payload_);
  peer.WriteFrame(Finish(1, 100000, digest_));
  const absl::Status status = peer.ReadAnswer();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("198304"));
  const std::vector<std::byte> got = table_.bytes(kSync, 1);
  for (const std::byte b : got) ASSERT_EQ(b, kGuard);
  ExpectAlive();
}

TEST_F(TcpHostileTest, BytesSentTwiceAreRefused) {
  Start();
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  for (const auto& [begin, end] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 8192}, {16384, 100000}, {4096, 12288}}) {
    peer.WriteFrame(Range(1, begin, end));
    peer.Write(payload_.substr(begin, end - begin));
  }
  peer.WriteFrame(Finish(1, 100000, digest_));
  const absl::Status status = peer.ReadAnswer();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("sent before"));
  ExpectAlive();
}

TEST_F(TcpHostileTest, ATruncatedPayloadReleasesTheMemory) {
  Start();
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  peer.WriteFrame(Range(1, 0, 100000));
  peer.Write(payload_.substr(0, 50000));
  ASSERT_TRUE(table_.WaitUntilEntered());
  peer.Close();
  EXPECT_TRUE(table_.WaitUntilLeft());
  EXPECT_EQ(table_.done(kSync, 1), 0);
  ExpectAlive();
}

TEST_F(TcpHostileTest, AStalledPayloadReleasesTheMemory) {
  Start(absl::Milliseconds(200));
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  peer.WriteFrame(Range(1, 0, 100000));
  peer.Write(payload_.substr(0, 50000));
  ASSERT_TRUE(table_.WaitUntilEntered());
  EXPECT_TRUE(peer.IsClosed());
  EXPECT_TRUE(table_.WaitUntilLeft());
}

TEST_F(TcpHostileTest, AHeldFinishDoesNotWaitForEver) {
  Start(absl::Milliseconds(200));
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  peer.WriteFrame(Finish(1, 100000, digest_));
  EXPECT_TRUE(peer.IsClosed());
  EXPECT_EQ(table_.done(kSync, 1), 0);
}

TEST_F(TcpHostileTest, AFinishOnOneStreamWaitsForBytesOnAnother) {
  Start();
  RawSender one(transport_->port());
  RawSender two(transport_->port());
  ASSERT_EQ(one.Hello(7, 5), absl::OkStatus());
  ASSERT_EQ(two.Hello(7, 5), absl::OkStatus());
  two.WriteFrame(Finish(1, 100000, digest_));
  one.WriteFrame(Range(1, 0, 100000));
  one.Write(payload_.substr(0, 99999));
  ASSERT_TRUE(table_.WaitUntilEntered());
  one.Write(payload_.substr(99999));
  EXPECT_EQ(two.ReadAnswer(), absl::OkStatus());
  // One stream that goes takes its session with it.
  one.Close();
  EXPECT_TRUE(two.IsClosed());
}

TEST_F(TcpHostileTest, HalfOpenConnectionsAreClosedInTime) {
  Start(absl::Milliseconds(200));
  RawSender silent(transport_->port());
  RawSender half(transport_->port());
  half.Write(wire::EncodeHello({}).substr(0, 20));
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_TRUE(half.IsClosed());
  ExpectAlive();
}

TEST_F(TcpHostileTest, TooManyConnectionsAreTurnedAway) {
  Start(absl::Seconds(30), /*max_connections=*/4);
  std::vector<std::unique_ptr<RawSender>> peers;
  for (int i = 0; i < 4; ++i) {
    peers.push_back(std::make_unique<RawSender>(transport_->port()));
    ASSERT_EQ(peers.back()->Hello(7, i), absl::OkStatus());
  }
  RawSender one_more(transport_->port());
  EXPECT_TRUE(one_more.IsClosed());
  peers.clear();
  // Their place is free again as soon as the receiver has noticed.
  const absl::Time deadline = Soon();
  absl::Status status;
  do {
    status = RawSender(transport_->port()).Hello(7, 99);
  } while (!status.ok() && absl::Now() < deadline);
  EXPECT_EQ(status, absl::OkStatus());
}

TEST_F(TcpHostileTest, AnAnswerFromASenderClosesTheConnection) {
  Start();
  RawSender peer(transport_->port());
  ASSERT_EQ(peer.Hello(7), absl::OkStatus());
  peer.Write(wire::EncodeAnswer(1, 1, absl::OkStatus()));
  EXPECT_TRUE(peer.IsClosed());
}

}  // namespace
}  // namespace xfer
