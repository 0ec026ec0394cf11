#include "agent/transport/verbs/doctor.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace xfer::verbs {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Gid RoceGid(const char* address) {
  Gid gid;
  gid.type = GidType::kRoceV2;
  EXPECT_EQ(inet_pton(AF_INET6, address, gid.gid.raw), 1);
  return gid;
}

NodeFacts GoodNode() {
  NodeFacts facts;
  facts.kernel_devices = {"mlx5_0"};
  facts.device_files = true;
  facts.may_lock_any = true;
  facts.memory_bytes = 1ull << 40;
  Port port;
  port.device = "mlx5_0";
  port.state = IBV_PORT_ACTIVE;
  port.active_mtu = port.max_mtu = 4096;
  port.gbit_per_s = 400;
  port.gids = {RoceGid("fe80::1"), RoceGid("::ffff:10.0.0.1")};
  facts.devices.push_back({"mlx5_0", "", 1ull << 62, 0, {port}, {"eth2"}});
  return facts;
}

Finding Only(const NodeFacts& facts) {
  const std::vector<Finding> findings = Judge(facts);
  EXPECT_THAT(findings, SizeIs(1));
  return findings.empty() ? Finding{} : findings[0];
}

TEST(DoctorTest, AGoodNodeHasNothingWrong) {
  EXPECT_THAT(Judge(GoodNode()), IsEmpty());
  EXPECT_THAT(Describe(GoodNode()),
              HasSubstr("port mlx5_0:1 active, RoCE on eth2, 400 Gbit/s, MTU 4096 of 4096"));
}

TEST(DoctorTest, SaysWhyThereIsNoDevice) {
  NodeFacts facts = GoodNode();
  facts.devices.clear();
  EXPECT_THAT(Only(facts).remedy, HasSubstr("ibverbs-providers"));
  facts.device_files = false;
  EXPECT_THAT(Only(facts).what, HasSubstr("mlx5_0 but there is no /dev/infiniband"));
  facts.kernel_devices.clear();
  EXPECT_THAT(Only(facts).what, HasSubstr("the kernel has no RDMA device"));
}

TEST(DoctorTest, NamesAPortThatIsDown) {
  NodeFacts facts = GoodNode();
  facts.devices[0].ports[0].state = IBV_PORT_DOWN;
  EXPECT_EQ(Only(facts).severity, Severity::kProblem);
  EXPECT_EQ(Only(facts).what, "port mlx5_0:1 (eth2) is down");
  EXPECT_THAT(Only(facts).remedy, HasSubstr("ip link set eth2 up"));
}

TEST(DoctorTest, NamesMissingAddresses) {
  NodeFacts facts = GoodNode();
  facts.devices[0].ports[0].gids.pop_back();
  EXPECT_EQ(Only(facts).severity, Severity::kWarning);
  EXPECT_THAT(Only(facts).what, HasSubstr("link-local GIDs only"));
  facts.devices[0].ports[0].gids.clear();
  EXPECT_EQ(Only(facts).severity, Severity::kProblem);
  EXPECT_THAT(Only(facts).what, HasSubstr("no RoCE v2 GID"));
}

TEST(DoctorTest, NamesASmallMtuAndASlowPort) {
  NodeFacts facts = GoodNode();
  facts.devices[0].ports[0].active_mtu = 1024;
  EXPECT_EQ(Only(facts).what, "port mlx5_0:1 (eth2) has MTU 1024 of 4096");
  facts = GoodNode();
  facts.devices.push_back(facts.devices[0]);
  facts.devices[1].ports[0].device = "mlx5_1";
  facts.devices[1].ports[0].gbit_per_s = 100;
  EXPECT_EQ(Only(facts).what, "port mlx5_1:1 runs at 100 Gbit/s, another port at 400");
}

TEST(DoctorTest, NamesTheLockedMemoryLimit) {
  NodeFacts facts = GoodNode();
  facts.may_lock_any = false;
  facts.locked_memory_limit = 8 << 20;
  EXPECT_EQ(Only(facts).what,
            "this process may lock 8.0 MiB of 1024.0 GiB memory; registered memory is locked");
  facts.locked_memory_limit = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(Judge(facts), IsEmpty());
}

TEST(DoctorTest, LooksAtThisMachine) {
  const NodeFacts facts = CollectFacts();
  EXPECT_GT(facts.memory_bytes, 0u);
  EXPECT_EQ(facts.devices.empty(), ListDevices().empty());
  if (facts.kernel_devices.empty()) {
    EXPECT_THAT(Judge(facts), SizeIs(1));
    EXPECT_THAT(Describe(facts), HasSubstr("no RDMA device"));
  }
}

}  // namespace
}  // namespace xfer::verbs
