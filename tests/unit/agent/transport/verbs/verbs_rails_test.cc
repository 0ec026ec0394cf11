// Two rails between two ends, and what becomes of a transfer when one or both of them fail. Runs in
// the guest's network `rails` (tests/rdma_vm/guest_main.sh): veth pairs v0a-v0b and v1a-v1b with a
// device on each end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/device.h"
#include "tests/unit/agent/transport/verbs/verbs_harness.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr SyncKey kSync{5, 0x1234567890abcdef};

void Shell(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

uint64_t SentBytes(const std::string& interface) {
  std::ifstream file(absl::StrCat("/sys/class/net/", interface, "/statistics/tx_bytes"));
  uint64_t bytes = 0;
  file >> bytes;
  return bytes;
}

// Until a port is in that state, 10 s at most.
bool AwaitPort(const std::string& device, bool active) {
  const absl::StatusOr<verbs::Context> context = verbs::Context::Open(device);
  if (!context.ok()) return false;
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (absl::Now() < deadline) {
    const auto port = context->QueryPort(1);
    if (port.ok() && port->active() == active && (!active || port->gids.size() > 1)) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

class VerbsRailsTest : public ::testing::Test {
 protected:
  explicit VerbsRailsTest(uint64_t bytes = 48 << 20)
      : transfer_(Contiguous(1, bytes)),
        source_(RandomBytes(bytes, 3)),
        destination_(bytes, kGuard) {}

  void SetUp() override {
    ASSERT_EQ(pair_.sender->Register(MemoryOf(source_)), absl::OkStatus());
    ASSERT_EQ(pair_.receiver->Register(MemoryOf(destination_)), absl::OkStatus());
    table_.Add(kSync, transfer_, MemoryOf(destination_));
    Connect();
  }
  void TearDown() override {
    endpoint_.reset();
    EXPECT_TRUE(table_.WaitUntilLeft());
    EXPECT_THAT(table_.breaches(), ::testing::IsEmpty());
    for (const char* end : {"v0a", "v0b", "v1a", "v1b"})
      Shell(absl::StrCat("ip link set ", end, " up"));
    for (const char* device : {"rxe0a", "rxe0b", "rxe1a", "rxe1b"})
      EXPECT_TRUE(AwaitPort(device, true));
  }

  void Connect() {
    auto endpoint = pair_.sender->Connect(pair_.peer(), absl::Now() + absl::Seconds(10));
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
  }
  absl::Status Send() { return SendAll(*endpoint_, kSync, transfer_, source_); }
  // Posts everything and returns when part of it has arrived.
  void StartSending() {
    for (const SendRange& range : Ranges(kSync, transfer_, MemoryOf(source_), 1 << 20)) {
      ASSERT_EQ(Post(*endpoint_, range, done_), absl::OkStatus());
    }
    ASSERT_EQ(endpoint_->PostFinish(kSync, transfer_, SourceDigest(transfer_, source_)),
              absl::OkStatus());
    while (done_.empty())
      ASSERT_EQ(endpoint_->Poll(absl::Milliseconds(1), done_), absl::OkStatus());
  }

  FakeReceiveTable table_;
  VerbsPair pair_{&table_, TestTuning("rxe0a+rxe1a"), TestTuning("rxe0b+rxe1b")};
  Transfer transfer_;
  std::vector<std::byte> source_, destination_;
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<Completion> done_;
};

TEST_F(VerbsRailsTest, BothRailsCarryTheBytes) {
  const uint64_t before[] = {SentBytes("v0a"), SentBytes("v1a")};
  ASSERT_EQ(Send(), absl::OkStatus());
  EXPECT_TRUE(destination_ == source_);
  EXPECT_GT(SentBytes("v0a") - before[0], transfer_.bytes / 4);
  EXPECT_GT(SentBytes("v1a") - before[1], transfer_.bytes / 4);
}

TEST_F(VerbsRailsTest, TheSendersRailIsPulled) {
  StartSending();
  Shell("ip link set v1a down");
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done_), absl::OkStatus());
  EXPECT_TRUE(destination_ == source_);
  EXPECT_EQ(table_.done(kSync, 1), 1);
  // All ranges were completed once.
  EXPECT_EQ(done_.size(), transfer_.bytes / (1 << 20) + 1);

  // A rail that is up again is used by the next connection.
  Shell("ip link set v1a up");
  ASSERT_TRUE(AwaitPort("rxe1a", true));
  ASSERT_TRUE(AwaitPort("rxe1b", true));
  const uint64_t before = SentBytes("v1a");
  Connect();
  ASSERT_EQ(Send(), absl::OkStatus());
  EXPECT_GT(SentBytes("v1a") - before, transfer_.bytes / 4);
}

// The sender's own port stays up (or is told only later): it is the retries that run out.
TEST_F(VerbsRailsTest, ARailLosesAllItsPackets) {
  StartSending();
  Shell("tc qdisc add dev v0a root netem loss 100%");
  EXPECT_EQ(WaitForFinish(*endpoint_, 1, done_), absl::OkStatus());
  EXPECT_TRUE(destination_ == source_);
  EXPECT_EQ(done_.size(), transfer_.bytes / (1 << 20) + 1);
  Shell("tc qdisc del dev v0a root");
}

TEST_F(VerbsRailsTest, WithoutAnyRailTheEndpointFailsInTime) {
  StartSending();
  Shell("ip link set v0a down && ip link set v1a down");
  const absl::Time start = absl::Now();
  const absl::Status status = WaitForFinish(*endpoint_, 1, done_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("verbs to node 'receiver': rxe"));
  EXPECT_THAT(status.message(), HasSubstr("GID 192.0."));
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  EXPECT_EQ(pair_.sender->Connect(pair_.peer(), absl::Now() + absl::Seconds(5)).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace xfer
