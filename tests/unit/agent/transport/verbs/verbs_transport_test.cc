// What is the verbs transport's own: keys, failures, rails. Needs RDMA devices (tests/rdma_vm).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs/doctor.h"
#include "agent/transport/verbs/objects.h"
#include "tests/unit/agent/transport/verbs/verbs_harness.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr SyncKey kSync{5, 0x1234567890abcdef};

// One transfer between registered memory of both ends.
struct Job {
  explicit Job(uint64_t bytes, uint32_t seed = 1)
      : transfer(Contiguous(1, bytes)),
        source(RandomBytes(bytes, seed)),
        destination(bytes, kGuard) {}
  void Register(VerbsPair& pair, FakeReceiveTable& table) {
    ASSERT_EQ(pair.sender->Register(MemoryOf(source)), absl::OkStatus());
    ASSERT_EQ(pair.receiver->Register(MemoryOf(destination)), absl::OkStatus());
    table.Add(kSync, transfer, MemoryOf(destination));
  }
  absl::Status Send(Endpoint& endpoint) { return SendAll(endpoint, kSync, transfer, source); }

  Transfer transfer;
  std::vector<std::byte> source, destination;
};

std::unique_ptr<Endpoint> Connect(VerbsPair& pair) {
  auto endpoint = pair.sender->Connect(pair.peer(), absl::Now() + absl::Seconds(10));
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return endpoint.ok() ? *std::move(endpoint) : nullptr;
}

TEST(VerbsTransportTest, RegistrationIsKeptAcrossSyncs) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  Job job(3 << 20);
  job.Register(pair, table);
  auto endpoint = Connect(pair);
  for (int sync = 0; sync < 3; ++sync) {
    job.source[sync] ^= std::byte{1};
    ASSERT_EQ(job.Send(*endpoint), absl::OkStatus());
    EXPECT_TRUE(job.destination == job.source);
  }
}

TEST(VerbsTransportTest, LargeMemoryIsRegisteredInPieces) {
  FakeReceiveTable table;
  verbs::Tuning tuning = TestTuning(ReceiverNics());
  tuning.region_bytes = 256 << 10;
  VerbsPair pair(&table, TestTuning(SenderNics()), tuning);
  Job job((3 << 20) + 5000);
  job.Register(pair, table);
  EXPECT_EQ(job.Send(*Connect(pair)), absl::OkStatus());
  EXPECT_TRUE(job.destination == job.source);
}

TEST(VerbsTransportTest, MemoryThatIsNotRegisteredIsNamed) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  Job job(1 << 20);
  table.Add(kSync, job.transfer, MemoryOf(job.destination));
  auto endpoint = Connect(pair);
  absl::Status status = endpoint->PostRange({kSync, &job.transfer, MemoryOf(job.source), 0, 4096});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are not registered"));
  ASSERT_EQ(pair.sender->Register(MemoryOf(job.source)), absl::OkStatus());
  EXPECT_EQ(job.Send(*endpoint).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(pair.receiver->Register(MemoryOf(job.destination)), absl::OkStatus());
  EXPECT_EQ(job.Send(*endpoint), absl::OkStatus());
}

TEST(VerbsTransportTest, OverlappingMemoryIsRefused) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  std::vector<std::byte> memory(1 << 20);
  const Memory all = MemoryOf(memory);
  ASSERT_EQ(pair.sender->Register({all.base, 8192}), absl::OkStatus());
  EXPECT_EQ(pair.sender->Register(all).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(pair.sender->Register({all.base + 8191, 100}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(pair.sender->Register({all.base + 8192, 100}), absl::OkStatus());
  pair.sender->Unregister({all.base, 8192});
  EXPECT_EQ(pair.sender->Register({all.base, 8192}), absl::OkStatus());
}

TEST(VerbsTransportTest, MemoryThatGoesIsWrittenNoMore) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  Job job(64 << 20);
  job.Register(pair, table);
  auto endpoint = Connect(pair);
  std::vector<Completion> done;
  ASSERT_EQ(
      Post(*endpoint, {kSync, &job.transfer, MemoryOf(job.source), 0, job.transfer.bytes}, done),
      absl::OkStatus());
  while (job.destination[0] == kGuard) {
    ASSERT_EQ(endpoint->Poll(absl::Milliseconds(1), done), absl::OkStatus());
  }
  pair.receiver->Unregister(MemoryOf(job.destination));
  std::fill(job.destination.begin(), job.destination.end(), std::byte{0x11});
  ASSERT_EQ(endpoint->PostFinish(kSync, job.transfer, 0), absl::OkStatus());
  const absl::Time start = absl::Now();
  const absl::Status status = WaitForFinish(*endpoint, 1, done);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("verbs to node 'receiver'"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  EXPECT_EQ(std::count(job.destination.begin(), job.destination.end(), std::byte{0x11}),
            static_cast<ptrdiff_t>(job.destination.size()));
  EXPECT_TRUE(table.WaitUntilLeft());
}

TEST(VerbsTransportTest, ADroppedKeyIsRefusedByTheDevice) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  Job job(1 << 20);
  job.Register(pair, table);
  // Exposed through a control that hands out keys of memory that has gone since.
  class Stale final : public VerbsControl {
   public:
    explicit Stale(VerbsPair& pair, Memory memory) : pair_(pair), memory_(memory) {}
    absl::StatusOr<v1::VerbsReply> Call(const PeerAddress& peer, const v1::VerbsRequest& request,
                                        absl::Time deadline) override {
      v1::VerbsRequest changed = request;
      auto reply = pair_.control->Call(peer, request, deadline);
      if (request.has_expose() && reply.ok()) {
        for (auto& region : *reply->mutable_expose()->mutable_regions()) {
          for (auto& keys : *region.mutable_rails()) keys.set_keys(0, keys.keys(0) ^ 0x5a);
        }
      }
      return reply;
    }

   private:
    VerbsPair& pair_;
    const Memory memory_;
  };
  auto sender = MakeVerbsTransport({"liar", 9, &pair.unused,
                                    std::make_shared<Stale>(pair, MemoryOf(job.destination)),
                                    TestTuning(SenderNics())});
  ASSERT_TRUE(sender.ok()) << sender.status();
  ASSERT_EQ((*sender)->Register(MemoryOf(job.source)), absl::OkStatus());
  auto endpoint = (*sender)->Connect(pair.peer(), absl::Now() + absl::Seconds(10));
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const absl::Status status = job.Send(**endpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("remote access error"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(":1 GID "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("has the destination's rank left"));
  EXPECT_EQ(std::count(job.destination.begin(), job.destination.end(), kGuard),
            static_cast<ptrdiff_t>(job.destination.size()));
  endpoint->reset();
  EXPECT_TRUE(table.WaitUntilLeft());
}

TEST(VerbsTransportTest, AnotherIncarnationIsRefused) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  const absl::Status status =
      pair.sender->Connect({"receiver", 6, ""}, absl::Now() + absl::Seconds(10)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expects incarnation 6 here, which is 7"));
}

TEST(VerbsTransportTest, APeerThatDiesIsNoticedByTheDevice) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  Job job(64 << 20);
  job.Register(pair, table);
  auto endpoint = Connect(pair);
  std::vector<Completion> done;
  ASSERT_EQ(
      Post(*endpoint, {kSync, &job.transfer, MemoryOf(job.source), 0, job.transfer.bytes}, done),
      absl::OkStatus());
  while (job.destination[0] == kGuard) {
    ASSERT_EQ(endpoint->Poll(absl::Milliseconds(1), done), absl::OkStatus());
  }
  pair.KillReceiver();
  const absl::Time start = absl::Now();
  absl::Status status;
  while (status.ok() && done.empty() && absl::Now() - start < absl::Seconds(15)) {
    status = endpoint->Poll(absl::Milliseconds(100), done);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("verbs to node 'receiver'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("transport retry counter exceeded"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the peer does not answer"));
}

TEST(VerbsTransportTest, ASilentSendersSessionEnds) {
  FakeReceiveTable table;
  verbs::Tuning tuning = TestTuning(ReceiverNics());
  tuning.stall_timeout = absl::Seconds(1);
  VerbsPair pair(&table, TestTuning(SenderNics()), tuning);
  Job job(1 << 20);
  job.Register(pair, table);
  auto endpoint = Connect(pair);
  std::vector<Completion> done;
  ASSERT_EQ(endpoint->PostRange({kSync, &job.transfer, MemoryOf(job.source), 0, 4096}),
            absl::OkStatus());
  ASSERT_EQ(PollFor(*endpoint, 1, done), absl::OkStatus());
  ASSERT_TRUE(table.WaitUntilEntered());
  pair.control->Detach();  // from now on nothing is heard
  EXPECT_TRUE(table.WaitUntilLeft());
}

TEST(VerbsTransportTest, AnIdleEndpointIsKeptAlive) {
  FakeReceiveTable table;
  verbs::Tuning tuning = TestTuning(ReceiverNics());
  tuning.stall_timeout = absl::Seconds(1);
  VerbsPair pair(&table, TestTuning(SenderNics()), tuning);
  Job job(1 << 20);
  job.Register(pair, table);
  auto endpoint = Connect(pair);
  std::vector<Completion> done;
  ASSERT_EQ(endpoint->Poll(absl::Seconds(3), done), absl::OkStatus());
  EXPECT_EQ(job.Send(*endpoint), absl::OkStatus());
}

TEST(VerbsTransportTest, DevicesAndPortsThatAreNotThereAreNamed) {
  FakeReceiveTable table;
  const auto make = [&](const std::string& nic) {
    return MakeVerbsTransport({"x", 1, &table, std::make_shared<DirectControl>(), TestTuning(nic)})
        .status();
  };
  EXPECT_EQ(make("mlx5_9").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(make("mlx5_9").message()),
              HasSubstr("no RDMA device mlx5_9; there are: rxe0"));
  EXPECT_THAT(make(SenderNics() + ":3").message(), HasSubstr("has 1 ports, and no port 3"));
}

TEST(DoctorTest, FindsTheDevicesAndNothingWrong) {
  const verbs::NodeFacts facts = verbs::CollectFacts();
  ASSERT_FALSE(facts.devices.empty());
  EXPECT_EQ(facts.devices[0].interfaces[0], "net0");
  for (const verbs::Finding& finding : verbs::Judge(facts)) {
    ADD_FAILURE() << finding.what << ": " << finding.remedy;
  }
  ASSERT_EQ(std::system("ip link set net0 down"), 0);
  const std::vector<verbs::Finding> findings = verbs::Judge(verbs::CollectFacts());
  ASSERT_EQ(std::system("ip link set net0 up"), 0);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].what, "port rxe0:1 (net0) is down");
}

// Takes capabilities from this thread until it goes; the tests run as root.
class WithoutCapability {
 public:
  explicit WithoutCapability(int capability) {
    EXPECT_EQ(syscall(SYS_capget, &header_, old_), 0);
    __user_cap_data_struct less[2] = {old_[0], old_[1]};
    less[capability / 32].effective &= ~(1u << (capability % 32));
    EXPECT_EQ(syscall(SYS_capset, &header_, less), 0);
  }
  ~WithoutCapability() { EXPECT_EQ(syscall(SYS_capset, &header_, old_), 0); }

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct old_[2] = {};
};

TEST(VerbsTransportTest, TooLittleLockedMemoryIsNamed) {
  FakeReceiveTable table;
  VerbsPair pair(&table);
  std::vector<std::byte> memory(8 << 20);
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &old), 0);
  const rlimit little = {1 << 20, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &little), 0);
  absl::Status status;
  {
    WithoutCapability without(CAP_IPC_LOCK);
    status = pair.sender->Register(MemoryOf(memory));
  }
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &old), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ibv_reg_mr of 8388608 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("may lock 1048576 bytes: raise it"));
  EXPECT_EQ(pair.sender->Register(MemoryOf(memory)), absl::OkStatus());
}

TEST(VerbsTransportTest, ADeviceThatMayNotBeUsedIsNamed) {
  const std::string device = SenderNics().substr(0, SenderNics().find('+'));
  ASSERT_EQ(std::system("chmod 0 /dev/infiniband/uverbs*"), 0);
  absl::Status status;
  {
    WithoutCapability without(CAP_DAC_OVERRIDE);
    status = verbs::Context::Open(device).status();
  }
  ASSERT_EQ(std::system("chmod 600 /dev/infiniband/uverbs*"), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/infiniband/uverbs"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("may this user read and write it"));
}

}  // namespace
}  // namespace xfer
