#include "common/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

TEST(RpcServer, TakenPortIsNamed) {
  auto first = RpcServer::Start({});
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  auto second = RpcServer::Start({.address = address});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr(address));
}

TEST(RpcServer, OnlyLoopbackWithoutInsecure) {
  for (const char* address : {"0.0.0.0:0", "192.0.2.1:7300", "[::]:0", "somehost:1"}) {
    const absl::Status status = CheckListenAddress(address, false, "listen address");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_THAT(status.message(), HasSubstr("--insecure"));
    EXPECT_TRUE(CheckListenAddress(address, true, "listen address").ok());
  }
  for (const char* address : {"127.0.0.1:0", "127.1.2.3:65535", "[::1]:5", "localhost:1"}) {
    EXPECT_TRUE(CheckListenAddress(address, false, "listen address").ok()) << address;
  }
}

TEST(RpcServer, BadAddressesAreNamed) {
  for (const char* address :
       {"", "host", ":1", "127.0.0.1:65536", "127.0.0.1:-1", "::1:5", "a:b"}) {
    const absl::Status status = CheckListenAddress(address, true, "listen address");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("\"", address, "\"")));
  }
}

TEST(Channel, NoServerIsAnErrorWithinTheDeadline) {
  auto server = RpcServer::Start({});
  ASSERT_TRUE(server.ok());
  const std::string target = absl::StrCat("127.0.0.1:", (*server)->port());
  (*server)->Shutdown(absl::ZeroDuration());
  auto channel = MakeChannel(target);
  const absl::Status status =
      WaitForChannel(*channel, "coordinator", target, absl::Milliseconds(300));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr(target));
}

TEST(Channel, ProxiesOfTheEnvironmentAreIgnored) {
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  setenv("grpc_proxy", "http://127.0.0.1:1", 1);
  auto server = RpcServer::Start({});
  ASSERT_TRUE(server.ok());
  const std::string target = absl::StrCat("127.0.0.1:", (*server)->port());
  auto channel = MakeChannel(target);
  EXPECT_TRUE(WaitForChannel(*channel, "coordinator", target, absl::Seconds(10)).ok());
  unsetenv("http_proxy");
  unsetenv("grpc_proxy");
}

}  // namespace
}  // namespace xfer
