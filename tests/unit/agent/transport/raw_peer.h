// The two ends of the tcp protocol by hand, for tests that do what no honest peer does.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_RAW_PEER_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_RAW_PEER_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/transport/socket.h"
#include "agent/transport/wire.h"

namespace xfer {

inline absl::Time Soon() { return absl::Now() + absl::Seconds(10); }

// Connects to a receiver and writes what it likes.
class RawSender {
 public:
  explicit RawSender(uint16_t port) {
    const auto addresses = ResolveAddress(absl::StrCat("127.0.0.1:", port));
    fd_ = *ConnectSocket(addresses->front(), Soon());
  }

  void Write(absl::string_view bytes) { EXPECT_TRUE(WriteAll(fd_.get(), bytes, Soon()).ok()); }
  void WriteFrame(const wire::Frame& frame) {
    const auto bytes = wire::EncodeFrame(frame);
    Write(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

  // Greets and returns the answer's status.
  absl::Status Hello(uint64_t expected_incarnation, uint64_t session = 1,
                     uint16_t version = wire::kProtocolVersion) {
    wire::Hello hello;
    hello.version = version;
    hello.node = "raw";
    hello.expected_incarnation = expected_incarnation;
    hello.session = session;
    Write(wire::EncodeHello(hello));
    std::vector<std::byte> bytes(wire::kHelloAnswerBytes);
    absl::Status status = ReadAll(fd_.get(), bytes.data(), bytes.size(), Soon());
    if (!status.ok()) return status;
    const auto message = wire::HelloAnswerMessageBytes(bytes);
    if (!message.ok()) return message.status();
    bytes.resize(bytes.size() + *message);
    status = ReadAll(fd_.get(), bytes.data() + wire::kHelloAnswerBytes, *message, Soon());
    if (!status.ok()) return status;
    return wire::DecodeHelloAnswer(bytes)->status;
  }

  // The next answer's status.
  absl::Status ReadAnswer() {
    std::vector<std::byte> bytes(wire::kFrameBytes);
    absl::Status status = ReadAll(fd_.get(), bytes.data(), bytes.size(), Soon());
    if (!status.ok()) return status;
    const auto frame = wire::DecodeFrame(bytes);
    if (!frame.ok()) return frame.status();
    std::string message(frame->message_bytes(), '\0');
    status = ReadAll(fd_.get(), message.data(), message.size(), Soon());
    if (!status.ok()) return status;
    return absl::Status(frame->code(), message);
  }

  // True when the receiver closes the connection before it says anything more, within 10 s.
  bool IsClosed() {
    char byte = 0;
    const absl::Status status = ReadAll(fd_.get(), &byte, 1, Soon());
    return absl::IsUnavailable(status);
  }

  void Close() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

// Listens like a receiver; the test decides what it does with the connections.
class RawReceiver {
 public:
  RawReceiver() : listener_(*Listen("127.0.0.1:0")) {}
  uint16_t port() const { return LocalAddress(listener_.get())->port(); }

  UniqueFd Accept() {
    EXPECT_TRUE(WaitFor(listener_.get(), POLLIN, Soon()).ok());
    return UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  // Accepts, reads the hello and answers it.
  UniqueFd AcceptAndGreet(const absl::Status& answer) {
    UniqueFd fd = Accept();
    std::vector<std::byte> bytes(wire::kHelloBytes);
    EXPECT_TRUE(ReadAll(fd.get(), bytes.data(), bytes.size(), Soon()).ok());
    const auto whole = wire::HelloBytes(bytes);
    EXPECT_TRUE(whole.ok());
    bytes.resize(*whole);
    EXPECT_TRUE(
        ReadAll(fd.get(), bytes.data() + wire::kHelloBytes, *whole - wire::kHelloBytes, Soon())
            .ok());
    EXPECT_TRUE(WriteAll(fd.get(), wire::EncodeHelloAnswer({answer, 1}), Soon()).ok());
    return fd;
  }

 private:
  UniqueFd listener_;
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_RAW_PEER_H_
