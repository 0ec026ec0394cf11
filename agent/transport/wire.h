// The bytes of the tcp transport's protocol; little-endian, version kProtocolVersion.
//
// A connection starts with a Hello from the sending agent and a HelloAnswer from the receiving one.
// Then the sender sends frames, the receiver answers each kFinish with one kAnswer:
//   kRange   header, then the stream bytes [begin, end) of the transfer
//   kFinish  header only; takes effect when `announced` stream bytes have arrived on the
//   connections of the
//            same session (a sender's connections to one receiver), in whatever order
//   kAnswer  header, then a message of `message_bytes`
// Nothing here trusts its input: what does not decode is an InvalidArgument that says why.
#ifndef XFER_AGENT_TRANSPORT_WIRE_H_
#define XFER_AGENT_TRANSPORT_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/transport/transport.h"

namespace xfer::wire {

inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr uint64_t kMaxPayloadBytes = 16 << 20;  // of one kRange
inline constexpr size_t kMaxMessageBytes = 1024;        // of an answer; longer ones are cut
inline constexpr size_t kMaxNodeBytes = 255;
inline constexpr uint16_t kMaxStreams = 64;  // connections of one session

// What a peer says goes into logs and errors: unprintable characters become '?'.
std::string Printable(absl::string_view text);

struct Hello {
  uint16_t version = kProtocolVersion;
  uint64_t incarnation = 0;           // the sender's
  uint64_t expected_incarnation = 0;  // the receiver's, as the sender knows it
  uint64_t session = 0;               // random; the same on all connections of a session
  uint16_t stream = 0;                // number of this connection within its session
  uint16_t streams = 1;
  std::string node;  // the sender's name
};
inline constexpr size_t kHelloBytes = 40;  // then the name

std::string EncodeHello(const Hello& hello);
// Bytes of the whole hello, from its first kHelloBytes.
absl::StatusOr<size_t> HelloBytes(absl::Span<const std::byte> fixed);
// Checks the form only: a version or incarnation that does not fit is for the caller to refuse.
absl::StatusOr<Hello> DecodeHello(absl::Span<const std::byte> whole);

// OK, or why the receiver refuses.
struct HelloAnswer {
  absl::Status status;
  uint64_t incarnation = 0;  // the receiver's
};
inline constexpr size_t kHelloAnswerBytes = 24;  // then the message

std::string EncodeHelloAnswer(const HelloAnswer& answer);
// Bytes of the message behind the fixed part.
absl::StatusOr<size_t> HelloAnswerMessageBytes(absl::Span<const std::byte> fixed);
absl::StatusOr<HelloAnswer> DecodeHelloAnswer(absl::Span<const std::byte> whole);

enum class FrameType : uint16_t { kRange = 1, kFinish = 2, kAnswer = 3 };

struct Frame {
  FrameType type = FrameType::kRange;
  SyncKey sync;  // the secret is 0 in an answer
  TransferId transfer = 0;
  // kRange: begin and end. kFinish: announced bytes and the digest. kAnswer: status code and
  // message bytes.
  uint64_t a = 0, b = 0;

  uint64_t begin() const { return a; }
  uint64_t end() const { return b; }
  uint64_t announced() const { return a; }
  uint64_t digest() const { return b; }
  absl::StatusCode code() const { return static_cast<absl::StatusCode>(a); }
  size_t message_bytes() const { return b; }
};
inline constexpr size_t kFrameBytes = 48;

std::array<std::byte, kFrameBytes> EncodeFrame(const Frame& frame);
// A kRange that decodes is not empty, at most kMaxPayloadBytes long and starts on a leaf.
absl::StatusOr<Frame> DecodeFrame(absl::Span<const std::byte> bytes);

// An answer with its message, cut to kMaxMessageBytes.
std::string EncodeAnswer(uint64_t sync_id, TransferId transfer, const absl::Status& status);

}  // namespace xfer::wire

#endif  // XFER_AGENT_TRANSPORT_WIRE_H_
