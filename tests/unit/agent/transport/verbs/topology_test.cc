#include "agent/transport/verbs/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwloc.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace xfer::verbs {
namespace {

using ::testing::ElementsAre;

// Below a root port of PCI bus `bus`: a switch with one GPU and one NIC, and another NIC beside it.
std::string Io(int bus, const std::string& nic_at_switch, const std::string& nic_beside) {
  const std::string b = absl::StrCat(bus);  // first digit of the bus numbers
  const auto pci = [](const std::string& address, const std::string& what,
                      const std::string& inside) {
    return absl::StrCat("<object type=\"PCIDev\" pci_busid=\"0000:", address, "\" pci_type=\"",
                        what, "\" pci_link_speed=\"0.0\">", inside, "</object>");
  };
  const auto nic = [&](const std::string& address, const std::string& name) {
    return pci(address, "0207 [15b3:1021] [15b3:0001] 00",
               absl::StrCat("<object type=\"OSDev\" name=\"", name, "\" osdev_type=\"3\"/>"));
  };
  const auto bridge = [&](const std::string& address, const std::string& buses,
                          const std::string& inside) {
    return absl::StrCat(
        "<object type=\"Bridge\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[", buses,
        "]\" pci_busid=\"0000:", address,
        "\" pci_type=\"0604 [8086:2030] [0000:0000] 00\" pci_link_speed=\"0.0\">", inside,
        "</object>");
  };
  const std::string gpu = pci(b + "3:00.0", "0302 [10de:2330] [10de:16c1] a1", "");
  return absl::StrCat("<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[",
                      b, "0-", b, "f]\">",
                      bridge(b + "0:01.0", b + "1-" + b + "4",
                             bridge(b + "1:00.0", b + "2-" + b + "4",
                                    absl::StrCat(gpu, nic(b + "4:00.0", nic_at_switch)))),
                      bridge(b + "0:02.0", b + "5-" + b + "6", nic(b + "5:00.0", nic_beside)),
                      "</object>");
}

// Two sockets of one NUMA node each, with Io() on both.
std::string TwoSockets() {
  hwloc_topology_t topology;
  EXPECT_EQ(hwloc_topology_init(&topology), 0);
  EXPECT_EQ(hwloc_topology_set_synthetic(topology, "pack:2 [numa] core:2 pu:1"), 0);
  EXPECT_EQ(hwloc_topology_load(topology), 0);
  char* text = nullptr;
  int length = 0;
  EXPECT_EQ(hwloc_topology_export_xmlbuffer(topology, &text, &length, 0), 0);
  std::string xml(text);
  hwloc_free_xmlbuffer(topology, text);
  hwloc_topology_destroy(topology);
  size_t at = 0;
  for (int socket = 0; socket < 2; ++socket) {
    at = xml.find("<object type=\"Package\"", at);
    at = xml.find('>', at) + 1;
    xml.insert(
        at, Io(socket, absl::StrCat("mlx5_", socket * 2), absl::StrCat("mlx5_", socket * 2 + 1)));
  }
  return xml;
}

class TopologyTest : public testing::Test {
 protected:
  TopologyTest() {
    auto made = Topology::FromXml(TwoSockets());
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) topology_ = *made;
  }
  std::shared_ptr<const Topology> topology_;
};

TEST_F(TopologyTest, FindsTheGpus) {
  const std::vector<Topology::Gpu> gpus = topology_->Gpus();
  ASSERT_EQ(gpus.size(), 2);
  EXPECT_EQ(gpus[0].address, "0000:03:00.0");
  EXPECT_EQ(gpus[1].address, "0000:13:00.0");
}

TEST_F(TopologyTest, ASwitchIsNearerThanASocketAndThatThanTheOther) {
  EXPECT_EQ(topology_->OfGpu("mlx5_0", "0000:03:00.0"), Nearness::kSameSwitch);
  EXPECT_EQ(topology_->OfGpu("mlx5_1", "0000:03:00.0"), Nearness::kSameNode);
  EXPECT_EQ(topology_->OfGpu("mlx5_2", "0000:03:00.0"), Nearness::kFar);
  EXPECT_EQ(topology_->OfGpu("mlx5_2", "0000:13:00.0"), Nearness::kSameSwitch);
}

TEST_F(TopologyTest, MemoryIsNearTheNicsOfItsNumaNode) {
  EXPECT_EQ(topology_->OfNode("mlx5_0", 0), Nearness::kSameNode);
  EXPECT_EQ(topology_->OfNode("mlx5_3", 0), Nearness::kFar);
  EXPECT_EQ(topology_->OfNode("mlx5_3", 1), Nearness::kSameNode);
}

TEST_F(TopologyTest, WhatIsNotKnownRulesNothingOut) {
  EXPECT_EQ(topology_->OfNode("mlx5_9", 1), Nearness::kSameNode);
  EXPECT_EQ(topology_->OfNode("mlx5_0", -1), Nearness::kSameNode);
  EXPECT_EQ(topology_->OfNode("mlx5_0", 7), Nearness::kSameNode);
  EXPECT_EQ(topology_->OfGpu("mlx5_0", "0000:77:00.0"), Nearness::kSameNode);
  EXPECT_FALSE(Topology::FromXml("no topology").ok());
}

TEST_F(TopologyTest, MemoryThatWasNeverTouchedIsNearEveryNic) {
  EXPECT_THAT(topology_->OfMemory({"mlx5_0", "mlx5_3"}, Memory{nullptr, 0}),
              ElementsAre(Nearness::kSameNode, Nearness::kSameNode));
}

}  // namespace
}  // namespace xfer::verbs
