// The tcp transport's hello, its answer, and frames.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "agent/transport/wire.h"
#include "tests/fuzz/seeds.h"

namespace xfer::fuzz {
namespace {

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

void Hello(absl::Span<const std::byte> input) {
  if (input.size() < wire::kHelloBytes) return;
  const absl::StatusOr<size_t> bytes = wire::HelloBytes(input.first(wire::kHelloBytes));
  if (!bytes.ok() || *bytes > input.size()) return;
  Require(*bytes <= wire::kHelloBytes + wire::kMaxNodeBytes, "a hello is bounded");
  const absl::StatusOr<wire::Hello> hello = wire::DecodeHello(input.first(*bytes));
  if (!hello.ok()) return;
  const std::string again = wire::EncodeHello(*hello);
  const absl::StatusOr<wire::Hello> twice = wire::DecodeHello(Bytes(again));
  Require(twice.ok() && twice->session == hello->session && twice->stream == hello->stream,
          "a hello that decodes can be said again");
}

void HelloAnswer(absl::Span<const std::byte> input) {
  if (input.size() < wire::kHelloAnswerBytes) return;
  const absl::StatusOr<size_t> message =
      wire::HelloAnswerMessageBytes(input.first(wire::kHelloAnswerBytes));
  if (!message.ok()) return;
  Require(*message <= wire::kMaxMessageBytes, "a message is bounded");
  if (input.size() < wire::kHelloAnswerBytes + *message) return;
  (void)wire::DecodeHelloAnswer(input.first(wire::kHelloAnswerBytes + *message));
}

void Frame(absl::Span<const std::byte> input) {
  if (input.size() < wire::kFrameBytes) return;
  const absl::StatusOr<wire::Frame> frame = wire::DecodeFrame(input.first(wire::kFrameBytes));
  if (!frame.ok()) return;
  if (frame->type == wire::FrameType::kRange) {
    Require(frame->begin() < frame->end(), "a range is not empty");
    Require(frame->end() - frame->begin() <= wire::kMaxPayloadBytes, "a range is bounded");
  }
  if (frame->type == wire::FrameType::kAnswer) {
    Require(frame->message_bytes() <= wire::kMaxMessageBytes, "an answer is bounded");
  }
  const auto again = wire::EncodeFrame(*frame);
  const absl::StatusOr<wire::Frame> twice = wire::DecodeFrame(again);
  Require(twice.ok() && twice->a == frame->a && twice->b == frame->b && twice->type == frame->type,
          "a frame that decodes can be said again");
}

}  // namespace

std::vector<std::string> Seeds() {
  wire::Hello hello;
  hello.node = "node-1";
  hello.streams = 4;
  wire::Frame range;
  range.sync = {3, 99};
  range.b = 1 << 20;
  wire::Frame finish = range;
  finish.type = wire::FrameType::kFinish;
  std::vector<std::string> out = {
      "h" + wire::EncodeHello(hello),
      "a" + wire::EncodeHelloAnswer({absl::NotFoundError("no such node"), 7}),
      "f" + wire::EncodeAnswer(3, 1, absl::DataLossError("digest"))};
  for (const wire::Frame& frame : {range, finish}) {
    const auto bytes = wire::EncodeFrame(frame);
    out.push_back("f" + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  return out;
}

}  // namespace xfer::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto input = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'h':
      xfer::fuzz::Hello(input);
      break;
    case 'a':
      xfer::fuzz::HelloAnswer(input);
      break;
    default:
      xfer::fuzz::Frame(input);
  }
  return 0;
}
