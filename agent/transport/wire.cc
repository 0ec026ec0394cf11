#include "agent/transport/wire.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace xfer::wire {
namespace {

constexpr uint32_t kHelloMagic = 0x31465258;        // "XRF1"
constexpr uint32_t kHelloAnswerMagic = 0x41465258;  // "XRFA"
constexpr uint32_t kFrameMagic = 0x46465258;        // "XRFF"
constexpr uint64_t kMaxStatusCode = 16;             // absl::StatusCode::kUnauthenticated

template <typename T>
std::byte* Put(std::byte* at, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
  return at + sizeof(T);
}

// Reads fields in order from bytes whose number was checked.
class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <typename T>
  T Get() {
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(at_[i])) << (8 * i));
    }
    at_ += sizeof(T);
    return value;
  }

 private:
  const std::byte* at_;
};

absl::Status Expect(absl::Span<const std::byte> bytes, size_t least, const char* what) {
  if (bytes.size() >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", bytes.size(), " bytes, needs ", least));
}

absl::Status CheckMagic(uint32_t got, uint32_t want, const char* what) {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " starts with 0x", absl::Hex(got, absl::kZeroPad8), ", not 0x",
                   absl::Hex(want, absl::kZeroPad8), "; the peer does not speak xfer's protocol"));
}

std::string PrintableBytes(const std::byte* at, size_t bytes) {
  return Printable(absl::string_view(reinterpret_cast<const char*>(at), bytes));
}

std::string CutMessage(const absl::Status& status) {
  return std::string(status.message().substr(0, kMaxMessageBytes));
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string printable(text);
  for (char& c : printable) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return printable;
}

std::string EncodeHello(const Hello& hello) {
  const std::string node = hello.node.substr(0, kMaxNodeBytes);
  std::string bytes(kHelloBytes + node.size(), '\0');
  std::byte* at = reinterpret_cast<std::byte*>(bytes.data());
  at = Put(at, kHelloMagic);
  at = Put(at, hello.version);
  at = Put(at, static_cast<uint16_t>(node.size()));
  at = Put(at, hello.incarnation);
  at = Put(at, hello.expected_incarnation);
  at = Put(at, hello.session);
  at = Put(at, hello.stream);
  at = Put(at, hello.streams);
  at = Put(at, uint32_t{0});
  std::memcpy(at, node.data(), node.size());
  return bytes;
}

absl::StatusOr<size_t> HelloBytes(absl::Span<const std::byte> fixed) {
  XFER_RETURN_IF_ERROR(Expect(fixed, kHelloBytes, "a hello"));
  Reader in(fixed.data());
  XFER_RETURN_IF_ERROR(CheckMagic(in.Get<uint32_t>(), kHelloMagic, "a hello"));
  in.Get<uint16_t>();
  const size_t node_bytes = in.Get<uint16_t>();
  if (node_bytes > kMaxNodeBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a hello's node name has ", node_bytes, " bytes, at most ", kMaxNodeBytes));
  }
  return kHelloBytes + node_bytes;
}

absl::StatusOr<Hello> DecodeHello(absl::Span<const std::byte> whole) {
  XFER_ASSIGN_OR_RETURN(const size_t bytes, HelloBytes(whole));
  XFER_RETURN_IF_ERROR(Expect(whole, bytes, "a hello"));
  Reader in(whole.data() + 4);
  Hello hello;
  hello.version = in.Get<uint16_t>();
  in.Get<uint16_t>();
  hello.incarnation = in.Get<uint64_t>();
  hello.expected_incarnation = in.Get<uint64_t>();
  hello.session = in.Get<uint64_t>();
  hello.stream = in.Get<uint16_t>();
  hello.streams = in.Get<uint16_t>();
  hello.node = PrintableBytes(whole.data() + kHelloBytes, bytes - kHelloBytes);
  // What a later version puts into these fields is not judged: its version is refused, with both
  // values.
  if (hello.version == kProtocolVersion &&
      (hello.streams == 0 || hello.streams > kMaxStreams || hello.stream >= hello.streams)) {
    return absl::InvalidArgumentError(absl::StrCat("a hello names stream ", hello.stream, " of ",
                                                   hello.streams, ", at most ", kMaxStreams));
  }
  return hello;
}

std::string EncodeHelloAnswer(const HelloAnswer& answer) {
  const std::string message = CutMessage(answer.status);
  std::string bytes(kHelloAnswerBytes + message.size(), '\0');
  std::byte* at = reinterpret_cast<std::byte*>(bytes.data());
  at = Put(at, kHelloAnswerMagic);
  at = Put(at, kProtocolVersion);
  at = Put(at, static_cast<uint16_t>(answer.status.code()));
  at = Put(at, answer.incarnation);
  at = Put(at, static_cast<uint32_t>(message.size()));
  at = Put(at, uint32_t{0});
  std::memcpy(at, message.data(), message.size());
  return bytes;
}

absl::StatusOr<size_t> HelloAnswerMessageBytes(absl::Span<const std::byte> fixed) {
  XFER_RETURN_IF_ERROR(Expect(fixed, kHelloAnswerBytes, "a hello's answer"));
  Reader in(fixed.data());
  XFER_RETURN_IF_ERROR(CheckMagic(in.Get<uint32_t>(), kHelloAnswerMagic, "a hello's answer"));
  in.Get<uint16_t>();
  const uint16_t code = in.Get<uint16_t>();
  in.Get<uint64_t>();
  const size_t message = in.Get<uint32_t>();
  if (code > kMaxStatusCode || message > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a hello's answer has status ", code,
                                                   " and a message of ", message, " bytes"));
  }
  return message;
}

absl::StatusOr<HelloAnswer> DecodeHelloAnswer(absl::Span<const std::byte> whole) {
  XFER_ASSIGN_OR_RETURN(const size_t message, HelloAnswerMessageBytes(whole));
  XFER_RETURN_IF_ERROR(Expect(whole, kHelloAnswerBytes + message, "a hello's answer"));
  Reader in(whole.data() + 6);
  const auto code = static_cast<absl::StatusCode>(in.Get<uint16_t>());
  HelloAnswer answer;
  answer.incarnation = in.Get<uint64_t>();
  answer.status = absl::Status(code, PrintableBytes(whole.data() + kHelloAnswerBytes, message));
  return answer;
}

std::array<std::byte, kFrameBytes> EncodeFrame(const Frame& frame) {
  std::array<std::byte, kFrameBytes> bytes;
  std::byte* at = bytes.data();
  at = Put(at, kFrameMagic);
  at = Put(at, static_cast<uint16_t>(frame.type));
  at = Put(at, uint16_t{0});
  at = Put(at, frame.sync.sync_id);
  at = Put(at, frame.sync.secret);
  at = Put(at, frame.transfer);
  at = Put(at, uint32_t{0});
  at = Put(at, frame.a);
  Put(at, frame.b);
  return bytes;
}

absl::StatusOr<Frame> DecodeFrame(absl::Span<const std::byte> bytes) {
  XFER_RETURN_IF_ERROR(Expect(bytes, kFrameBytes, "a frame"));
  Reader in(bytes.data());
  XFER_RETURN_IF_ERROR(CheckMagic(in.Get<uint32_t>(), kFrameMagic, "a frame"));
  Frame frame;
  const uint16_t type = in.Get<uint16_t>();
  const uint16_t reserved = in.Get<uint16_t>();
  frame.sync.sync_id = in.Get<uint64_t>();
  frame.sync.secret = in.Get<uint64_t>();
  frame.transfer = in.Get<uint32_t>();
  const uint32_t reserved2 = in.Get<uint32_t>();
  frame.a = in.Get<uint64_t>();
  frame.b = in.Get<uint64_t>();
  frame.type = static_cast<FrameType>(type);
  if (reserved != 0 || reserved2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of type ", type, " has reserved bits set"));
  }
  switch (frame.type) {
    case FrameType::kRange:
      if (frame.begin() >= frame.end() || frame.end() - frame.begin() > kMaxPayloadBytes ||
          frame.begin() % kDigestLeafBytes != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a range frame has stream bytes [", frame.begin(), ", ", frame.end(), "); at most ",
            kMaxPayloadBytes, ", from a multiple of ", kDigestLeafBytes));
      }
      return frame;
    case FrameType::kFinish:
      return frame;
    case FrameType::kAnswer:
      if (frame.a > kMaxStatusCode || frame.b > kMaxMessageBytes) {
        return absl::InvalidArgumentError(absl::StrCat("an answer frame has status ", frame.a,
                                                       " and a message of ", frame.b, " bytes"));
      }
      return frame;
  }
  return absl::InvalidArgumentError(absl::StrCat("a frame has the unknown type ", type));
}

std::string EncodeAnswer(uint64_t sync_id, TransferId transfer, const absl::Status& status) {
  const std::string message = CutMessage(status);
  Frame frame;
  frame.type = FrameType::kAnswer;
  frame.sync.sync_id = sync_id;
  frame.transfer = transfer;
  frame.a = static_cast<uint64_t>(status.code());
  frame.b = message.size();
  const auto header = EncodeFrame(frame);
  std::string bytes(reinterpret_cast<const char*>(header.data()), header.size());
  return bytes + message;
}

}  // namespace xfer::wire
