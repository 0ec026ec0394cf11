// Choosing GIDs, MTUs and rails, without any device.
#include "agent/transport/verbs/device.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "agent/transport/verbs/connection.h"

namespace xfer::verbs {
namespace {

Gid MakeGid(uint32_t index, GidType type, const char* address) {
  Gid gid;
  gid.index = index;
  gid.type = type;
  EXPECT_EQ(inet_pton(AF_INET6, address, gid.gid.raw), 1) << address;
  return gid;
}

const Gid kLinkLocal = MakeGid(0, GidType::kRoceV2, "fe80::1");
const Gid kV1 = MakeGid(1, GidType::kRoceV1, "::ffff:192.0.2.1");
const Gid kIpv4 = MakeGid(2, GidType::kRoceV2, "::ffff:192.0.2.1");
const Gid kGlobal = MakeGid(3, GidType::kRoceV2, "fd00::1");
const Gid kInfiniBand = MakeGid(0, GidType::kInfiniBand, "fe80::2:c903:0:1");

uint32_t Chosen(const std::vector<Gid>& local, const std::vector<Gid>& remote) {
  const auto pair = ChooseGids(local, remote);
  return pair.ok() ? pair->local.index : 99;
}

TEST(ChooseGidsTest, PrefersIpv4ThenGlobalThenLinkLocal) {
  EXPECT_EQ(Chosen({kLinkLocal, kV1, kIpv4, kGlobal}, {kLinkLocal, kGlobal, kIpv4}), 2u);
  EXPECT_EQ(Chosen({kLinkLocal, kV1, kIpv4, kGlobal}, {kLinkLocal, kGlobal}), 3u);
  EXPECT_EQ(Chosen({kLinkLocal, kGlobal}, {kIpv4, kLinkLocal}), 0u);
  EXPECT_EQ(Chosen({kInfiniBand}, {kInfiniBand}), 0u);
}

TEST(ChooseGidsTest, BothEndsAreOfOneFamily) {
  const auto pair = ChooseGids({kIpv4, kGlobal}, {kLinkLocal, kGlobal});
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(pair->local.index, 3u);
  EXPECT_EQ(pair->remote.index, 3u);
}

TEST(ChooseGidsTest, SaysWhatBothEndsHave) {
  const absl::Status status = ChooseGids({kIpv4, kV1}, {kGlobal}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(),
              ::testing::HasSubstr("192.0.2.1 (RoCE v2), 192.0.2.1 (RoCE v1); there fd00::1"));
  EXPECT_EQ(ChooseGids({kV1}, {kV1}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ChooseGids({}, {kGlobal}).status().message(), ::testing::HasSubstr("here none"));
}

TEST(MtuTest, TakesTheLargestThatFits) {
  EXPECT_EQ(MtuBytes(MtuOfBytes(4096)), 4096u);
  EXPECT_EQ(MtuBytes(MtuOfBytes(4095)), 2048u);
  EXPECT_EQ(MtuBytes(MtuOfBytes(1024)), 1024u);
  EXPECT_EQ(MtuBytes(MtuOfBytes(1)), 256u);
  EXPECT_EQ(MtuBytes(MtuOfBytes(1 << 20)), 4096u);
}

TEST(NicNameTest, ParsesDevicesAndPorts) {
  EXPECT_EQ(ParseNicName("mlx5_0")->device, "mlx5_0");
  EXPECT_EQ(ParseNicName("mlx5_0")->port, 0);
  EXPECT_EQ(ParseNicName("mlx5_3:2")->port, 2);
  for (const char* bad : {"", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:x"}) {
    EXPECT_EQ(ParseNicName(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(ContextTest, AMissingDeviceIsNamedWithThoseThereAre) {
  const absl::Status status = Context::Open("no_such_nic").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("no_such_nic; there are"));
}

Port MakePort(const std::string& device, uint32_t mtu, std::vector<Gid> gids,
              bool ethernet = true) {
  Port port;
  port.device = device;
  port.state = IBV_PORT_ACTIVE;
  port.ethernet = ethernet;
  port.active_mtu = mtu;
  port.gids = std::move(gids);
  return port;
}

TEST(ChooseRailsTest, JoinsPortsInOrderAndTakesTheSmallerMtu) {
  const auto rails = ChooseRails({MakePort("a0", 4096, {kIpv4}), MakePort("a1", 1024, {kIpv4})},
                                 {MakePort("b0", 2048, {kIpv4}), MakePort("b1", 4096, {kIpv4})});
  ASSERT_TRUE(rails.ok()) << rails.status();
  ASSERT_EQ(rails->size(), 2u);
  EXPECT_EQ((*rails)[0].remote, 0u);
  EXPECT_EQ((*rails)[0].mtu, 2048u);
  EXPECT_EQ((*rails)[1].local, 1u);
  EXPECT_EQ((*rails)[1].remote, 1u);
  EXPECT_EQ((*rails)[1].mtu, 1024u);
}

TEST(ChooseRailsTest, UsesAllPortsOfTheNodeThatHasMore) {
  const Port port = MakePort("n", 4096, {kIpv4});
  EXPECT_EQ(ChooseRails({port}, {port, port, port})->size(), 3u);
  EXPECT_EQ(ChooseRails({port, port}, {port})->size(), 2u);
}

TEST(ChooseRailsTest, LeavesOutPortsThatCannotReachEachOther) {
  const Port ethernet = MakePort("e", 4096, {kIpv4});
  const Port infiniband = MakePort("i", 4096, {kInfiniBand}, /*ethernet=*/false);
  EXPECT_EQ(ChooseRails({ethernet, infiniband}, {ethernet, ethernet})->size(), 1u);
  const absl::Status status = ChooseRails({infiniband}, {ethernet}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("i:1 and e:1: one is InfiniBand"));
  EXPECT_EQ(ChooseRails({}, {ethernet}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace xfer::verbs
