// What only tcp has: addresses, hellos, and peers that break or stop.
#include "agent/transport/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/agent/transport/harness.h"
#include "tests/unit/agent/transport/raw_peer.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr SyncKey kSync{1, 2};

class TcpTest : public ::testing::Test {
 protected:
  std::unique_ptr<TcpTransport> Make(absl::Duration stall_timeout, int streams = 2) {
    TcpOptions options = TestTcpOptions("here", 7, &table_);
    options.stall_timeout = stall_timeout;
    options.streams = streams;
    auto transport = MakeTcpTransport(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
  static std::string Address(uint16_t port) { return absl::StrCat("127.0.0.1:", port); }

  FakeReceiveTable table_;
};

TEST_F(TcpTest, ATakenPortIsAlreadyExistsAndNamed) {
  const auto first = Make(absl::Seconds(30));
  TcpOptions options = TestTcpOptions("there", 8, &table_);
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    options.listen_address = absl::StrCat(host, ":", first->port());
    const auto second = MakeTcpTransport(options);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(second.status().message(), HasSubstr(options.listen_address));
  }
}

TEST_F(TcpTest, AFreedPortCanBeHadAgainAtOnce) {
  uint16_t port = 0;
  {
    const auto first = Make(absl::Seconds(30));
    port = first->port();
    // A connection that the server closes first leaves TIME_WAIT on its port.
    RawSender peer(port);
    EXPECT_EQ(peer.Hello(7), absl::OkStatus());
  }
  TcpOptions options = TestTcpOptions("again", 8, &table_);
  options.listen_address = Address(port);
  EXPECT_EQ(MakeTcpTransport(options).status(), absl::OkStatus());
}

TEST_F(TcpTest, BadOptionsAreInvalidArgumentsThatNameTheValue) {
  const auto code_with = [&](auto change) {
    TcpOptions options = TestTcpOptions("x", 1, &table_);
    change(options);
    return MakeTcpTransport(options).status().code();
  };
  for (const char* address :
       {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", ":1", "127.0.0.1:x", "::1:80"}) {
    EXPECT_EQ(code_with([&](TcpOptions& o) { o.listen_address = address; }),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(code_with([](TcpOptions& o) { o.streams = 0; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](TcpOptions& o) { o.streams = 65; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](TcpOptions& o) { o.io_threads = -1; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](TcpOptions& o) { o.chunk_bytes = 1000; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](TcpOptions& o) { o.table = nullptr; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with([](TcpOptions& o) { o.stall_timeout = absl::ZeroDuration(); }),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TcpTest, ARefusedConnectionNamesPeerAndAddress) {
  const auto transport = Make(absl::Seconds(30));
  uint16_t port = 0;
  {
    RawReceiver gone;
    port = gone.port();
  }
  const auto endpoint = transport->Connect({"node-b", 1, Address(port)}, Soon());
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(endpoint.status().message(), HasSubstr("node-b"));
  EXPECT_THAT(endpoint.status().message(), HasSubstr(Address(port)));
  EXPECT_THAT(endpoint.status().message(), HasSubstr("refused"));
}

TEST_F(TcpTest, AWrongIncarnationIsRefusedWithBothValues) {
  const auto transport = Make(absl::Seconds(30));
  const auto endpoint = transport->Connect({"here", 12345, Address(transport->port())}, Soon());
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(endpoint.status().message(), HasSubstr("incarnation 7, not 12345"));
}

TEST_F(TcpTest, AnotherProtocolVersionIsRefusedWithBothValues) {
  const auto transport = Make(absl::Seconds(30));
  RawSender peer(transport->port());
  const absl::Status status = peer.Hello(7, 1, 99);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("version 1"));
  EXPECT_THAT(status.message(), HasSubstr("version 99"));
  EXPECT_TRUE(peer.IsClosed());
}

TEST_F(TcpTest, AListenerThatNeverAnswersEndsAtTheDeadline) {
  const auto transport = Make(absl::Seconds(30));
  RawReceiver silent;
  const absl::Time start = absl::Now();
  const auto endpoint =
      transport->Connect({"silent", 1, Address(silent.port())}, start + absl::Milliseconds(200));
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(endpoint.status().message(), HasSubstr("silent"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(TcpTest, AListenerThatSpeaksAnotherLanguageIsNamed) {
  const auto transport = Make(absl::Seconds(30), 1);
  RawReceiver server;
  std::thread answer([&] {
    UniqueFd fd = server.Accept();
    EXPECT_TRUE(
        WriteAll(fd.get(), "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", Soon()).ok());
    char byte = 0;
    while (ReadAll(fd.get(), &byte, 1, Soon()).ok()) {
    }
  });
  const auto endpoint = transport->Connect({"web", 1, Address(server.port())}, Soon());
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(endpoint.status().message(), HasSubstr("does not speak xfer's protocol"));
  answer.join();
}

TEST_F(TcpTest, APeerThatStopsReadingIsDeadlineExceededAndNamed) {
  const auto transport = Make(absl::Milliseconds(300), 1);
  RawReceiver stopped;
  UniqueFd fd;
  std::thread greet([&] { fd = stopped.AcceptAndGreet(absl::OkStatus()); });
  auto endpoint = transport->Connect({"stopped", 1, Address(stopped.port())}, Soon());
  greet.join();
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  // More than the sockets' buffers take.
  const Transfer transfer = Contiguous(1, 64 << 20);
  std::vector<std::byte> source(transfer.bytes);
  std::vector<Completion> done;
  ASSERT_EQ(Post(**endpoint, {kSync, &transfer, MemoryOf(source), 0, transfer.bytes}, done),
            absl::OkStatus());
  const absl::Time start = absl::Now();
  const absl::Status status = PollFor(**endpoint, 1, done);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("stopped"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(TcpTest, AFinishThatIsNeverAnsweredIsDeadlineExceeded) {
  const auto transport = Make(absl::Milliseconds(300), 1);
  RawReceiver mute;
  UniqueFd fd;
  std::thread greet([&] { fd = mute.AcceptAndGreet(absl::OkStatus()); });
  auto endpoint = transport->Connect({"mute", 1, Address(mute.port())}, Soon());
  greet.join();
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const Transfer transfer = Contiguous(1, 10);
  std::vector<std::byte> source(transfer.bytes);
  EXPECT_EQ(SendAll(**endpoint, kSync, transfer, source).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(TcpTest, AnIdleEndpointDoesNotStall) {
  const auto transport = Make(absl::Milliseconds(100));
  auto endpoint = transport->Connect({"here", 7, Address(transport->port())}, Soon());
  ASSERT_TRUE(endpoint.ok());
  std::vector<Completion> done;
  EXPECT_EQ((*endpoint)->Poll(absl::Milliseconds(400), done), absl::OkStatus());
  const Transfer transfer = Contiguous(1, 100000);
  std::vector<std::byte> source = RandomBytes(transfer.bytes, 1);
  table_.Add(kSync, transfer, transfer.bytes, kGuard);
  EXPECT_EQ(SendAll(**endpoint, kSync, transfer, source), absl::OkStatus());
}

TEST_F(TcpTest, AnAnswerNobodyAskedForFailsTheEndpoint) {
  const auto transport = Make(absl::Seconds(30), 1);
  for (const bool garbage : {false, true}) {
    RawReceiver liar;
    UniqueFd fd;
    std::thread greet([&] { fd = liar.AcceptAndGreet(absl::OkStatus()); });
    auto endpoint = transport->Connect({"liar", 1, Address(liar.port())}, Soon());
    greet.join();
    ASSERT_TRUE(endpoint.ok());
    EXPECT_TRUE(
        WriteAll(fd.get(),
                 garbage ? std::string(200, 'g') : wire::EncodeAnswer(1, 2, absl::OkStatus()),
                 Soon())
            .ok());
    std::vector<Completion> done;
    const absl::Status status = PollFor(**endpoint, 1, done);
    EXPECT_THAT(status.message(), HasSubstr("liar"));
    EXPECT_TRUE(done.empty());
  }
}

TEST_F(TcpTest, SeveralNamesOfOneHostAreTried) {
  const auto transport = Make(absl::Seconds(30));
  // "localhost" may be ::1 first; the transport listens on 127.0.0.1 only.
  auto endpoint =
      transport->Connect({"here", 7, absl::StrCat("localhost:", transport->port())}, Soon());
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
}

}  // namespace
}  // namespace xfer
