#include "agent/transport/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace xfer::wire {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

TEST(WireTest, HelloComesBack) {
  Hello hello;
  hello.incarnation = 0x0102030405060708;
  hello.expected_incarnation = std::numeric_limits<uint64_t>::max();
  hello.session = 42;
  hello.stream = 3;
  hello.streams = 4;
  hello.node = "trainer-17";
  const std::string bytes = EncodeHello(hello);
  EXPECT_EQ(bytes.size(), kHelloBytes + 10);
  EXPECT_EQ(*HelloBytes(Bytes(bytes.substr(0, kHelloBytes))), bytes.size());
  const auto back = DecodeHello(Bytes(bytes));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->version, kProtocolVersion);
  EXPECT_EQ(back->incarnation, hello.incarnation);
  EXPECT_EQ(back->expected_incarnation, hello.expected_incarnation);
  EXPECT_EQ(back->session, 42u);
  EXPECT_EQ(back->stream, 3);
  EXPECT_EQ(back->streams, 4);
  EXPECT_EQ(back->node, "trainer-17");
}

TEST(WireTest, FieldsAreLittleEndianAndWhereTheyBelong) {
  Frame frame;
  frame.type = FrameType::kFinish;
  frame.sync = {0x1122334455667788, 2};
  frame.transfer = 0x0a0b0c0d;
  frame.b = 0xff;
  const auto bytes = EncodeFrame(frame);
  EXPECT_EQ(bytes[4], std::byte{2});
  EXPECT_EQ(bytes[8], std::byte{0x88});
  EXPECT_EQ(bytes[15], std::byte{0x11});
  EXPECT_EQ(bytes[24], std::byte{0x0d});
  EXPECT_EQ(bytes[40], std::byte{0xff});
}

TEST(WireTest, HelloWithLyingLengthsIsRefused) {
  std::string bytes = EncodeHello({});
  bytes[6] = '\xff';
  bytes[7] = '\xff';
  EXPECT_THAT(HelloBytes(Bytes(bytes)).status().message(), HasSubstr("65535"));
  bytes[7] = 0;  // 255 bytes of name, of which there is none
  EXPECT_FALSE(DecodeHello(Bytes(bytes)).ok());
  Hello hello;
  hello.stream = 2;
  hello.streams = 2;
  EXPECT_FALSE(DecodeHello(Bytes(EncodeHello(hello))).ok());
  hello.streams = kMaxStreams + 1;
  EXPECT_FALSE(DecodeHello(Bytes(EncodeHello(hello))).ok());
}

TEST(WireTest, AnotherVersionIsNotJudgedByItsFields) {
  Hello hello;
  hello.version = 9;
  hello.streams = 0;
  ASSERT_TRUE(DecodeHello(Bytes(EncodeHello(hello))).ok());
}

TEST(WireTest, NamesAndMessagesArePrintable) {
  Hello hello;
  hello.node = "a\nb\x1b[31m";
  EXPECT_EQ(DecodeHello(Bytes(EncodeHello(hello)))->node, "a?b?[31m");
}

TEST(WireTest, HelloAnswerComesBack) {
  const std::string bytes = EncodeHelloAnswer({absl::FailedPreconditionError("not me"), 77});
  EXPECT_EQ(*HelloAnswerMessageBytes(Bytes(bytes)), 6u);
  const auto back = DecodeHelloAnswer(Bytes(bytes));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->status, absl::FailedPreconditionError("not me"));
  EXPECT_EQ(back->incarnation, 77u);
  std::string lying = bytes;
  lying[18] = '\x7f';
  EXPECT_FALSE(DecodeHelloAnswer(Bytes(lying)).ok());
}

TEST(WireTest, LongMessagesAreCut) {
  const std::string bytes = EncodeAnswer(1, 2, absl::DataLossError(std::string(5000, 'x')));
  EXPECT_EQ(bytes.size(), kFrameBytes + kMaxMessageBytes);
  const auto frame = DecodeFrame(Bytes(bytes));
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame->code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(frame->message_bytes(), kMaxMessageBytes);
}

TEST(WireTest, RangesAreChecked) {
  const auto decode = [](uint64_t begin, uint64_t end) {
    Frame frame;
    frame.a = begin;
    frame.b = end;
    const auto bytes = EncodeFrame(frame);
    return DecodeFrame(bytes).status().code();
  };
  EXPECT_EQ(decode(4096, 5000), absl::StatusCode::kOk);
  EXPECT_EQ(decode(0, kMaxPayloadBytes), absl::StatusCode::kOk);
  EXPECT_EQ(decode(0, kMaxPayloadBytes + 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode(0, std::numeric_limits<uint64_t>::max()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode(4096, 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode(8192, 4096), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode(1, 4096), absl::StatusCode::kInvalidArgument);
}

TEST(WireTest, NoInputBreaksADecoder) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 50000; ++i) {
    std::vector<std::byte> bytes(random() % 80);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    // Half of them with a right start, so that the rest is looked at.
    const std::string good = i % 4 == 0   ? EncodeHello({})
                             : i % 4 == 1 ? EncodeHelloAnswer({})
                                          : EncodeAnswer(0, 0, absl::OkStatus());
    if (i % 2 == 0 && bytes.size() >= 8) std::memcpy(bytes.data(), good.data(), 4 + i % 5);
    if (const auto hello = DecodeHello(bytes); hello.ok()) {
      EXPECT_LE(hello->node.size(), kMaxNodeBytes);
    }
    if (const auto answer = DecodeHelloAnswer(bytes); answer.ok()) {
      EXPECT_LE(answer->status.message().size(), kMaxMessageBytes);
    }
    if (const auto frame = DecodeFrame(bytes); frame.ok() && frame->type == FrameType::kRange) {
      EXPECT_LE(frame->end() - frame->begin(), kMaxPayloadBytes);
    }
  }
}

}  // namespace
}  // namespace xfer::wire
