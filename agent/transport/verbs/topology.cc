#include "agent/transport/verbs/topology.h"

#include <hwloc.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace xfer::verbs {
namespace {

constexpr uint64_t kSamples = 16;
// PCI classes of display controllers: VGA, 3D, other ones. The ones with a driver for computing are
// not told apart here; an on-board VGA console is not a 3D controller.
constexpr unsigned kVgaClass = 0x0300, k3dClass = 0x0302;
constexpr unsigned kNvidia = 0x10de, kAmd = 0x1002;

std::string AddressOf(const hwloc_obj* pci) {
  const auto& at = pci->attr->pcidev;
  return absl::StrFormat("%04x:%02x:%02x.%x", at.domain, at.bus, at.dev, at.func);
}

bool IsGpu(const hwloc_obj* pci) {
  const auto& attributes = pci->attr->pcidev;
  return attributes.class_id == k3dClass ||
         (attributes.class_id == kVgaClass &&
          (attributes.vendor_id == kNvidia || attributes.vendor_id == kAmd));
}

// A switch's bridge has a PCI bus above it; a host bridge or root port has none.
bool IsSwitch(const hwloc_obj* object) {
  return object->type == HWLOC_OBJ_BRIDGE &&
         object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI && object->parent != nullptr &&
         object->parent->type == HWLOC_OBJ_BRIDGE &&
         object->parent->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI;
}

// -1: not known, e.g. since the page was never touched or the kernel does not let us ask.
int NodeOfPage(const std::byte* page) {
  int node = -1;
  const long error = syscall(SYS_get_mempolicy, &node, nullptr, 0, page, MPOL_F_NODE | MPOL_F_ADDR);
  return error == 0 ? node : -1;
}

}  // namespace

absl::string_view Describe(Nearness nearness) {
  switch (nearness) {
    case Nearness::kSameSwitch:
      return "one PCI switch";
    case Nearness::kSameNode:
      return "one NUMA node";
    case Nearness::kSamePackage:
      return "one socket";
    case Nearness::kFar:
      return "across sockets";
  }
  return "unknown";
}

absl::StatusOr<std::shared_ptr<const Topology>> Topology::Finish(hwloc_topology* topology) {
  std::shared_ptr<const Topology> made(new Topology(topology));
  // PCI devices, GPUs among them, are found through sysfs. The plugins that ask other libraries for
  // more about them take memory, and load drivers, that they never give back.
  for (const char* plugin : {"cuda", "gl", "levelzero", "nvml", "opencl", "pci", "rsmi"}) {
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  }
  if (hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
      hwloc_topology_load(topology) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("hwloc cannot read the machine's topology: ", strerror(errno)));
  }
  return made;
}

absl::StatusOr<std::shared_ptr<const Topology>> Topology::Load() {
  hwloc_topology* topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("hwloc cannot start: ", strerror(errno)));
  }
  // The agent may be bound to some cores, and its NICs are elsewhere all the same.
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  return Finish(topology);
}

absl::StatusOr<std::shared_ptr<const Topology>> Topology::FromXml(const std::string& document) {
  hwloc_topology* topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("hwloc cannot start: ", strerror(errno)));
  }
  if (hwloc_topology_set_xmlbuffer(topology, document.c_str(),
                                   static_cast<int>(document.size() + 1)) != 0) {
    hwloc_topology_destroy(topology);
    return absl::InvalidArgumentError("hwloc cannot read this XML document");
  }
  return Finish(topology);
}

Topology::~Topology() { hwloc_topology_destroy(topology_); }

std::vector<Topology::Gpu> Topology::Gpus() const {
  std::vector<Gpu> gpus;
  hwloc_obj* pci = nullptr;
  while ((pci = hwloc_get_next_pcidev(topology_, pci)) != nullptr) {
    if (!IsGpu(pci)) continue;
    const char* const model = hwloc_obj_get_info_by_name(pci, "PCIDevice");
    gpus.push_back({AddressOf(pci), model == nullptr ? "" : model});
  }
  return gpus;
}

hwloc_obj* Topology::Nic(absl::string_view name) const {
  hwloc_obj* device = nullptr;
  while ((device = hwloc_get_next_osdev(topology_, device)) != nullptr) {
    if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && device->name == name) {
      return device;
    }
  }
  return nullptr;
}

Nearness Topology::OfPlaces(hwloc_obj* a, hwloc_obj* b) const {
  for (hwloc_obj* above = a->parent; above != nullptr; above = above->parent) {
    if (!IsSwitch(above)) continue;
    for (hwloc_obj* other = b->parent; other != nullptr; other = other->parent) {
      if (other == above) return Nearness::kSameSwitch;
    }
  }
  hwloc_obj* const x = hwloc_get_non_io_ancestor_obj(topology_, a);
  hwloc_obj* const y = hwloc_get_non_io_ancestor_obj(topology_, b);
  if (x == nullptr || y == nullptr || x->nodeset == nullptr || y->nodeset == nullptr) {
    return Nearness::kSameNode;
  }
  if (hwloc_bitmap_intersects(x->nodeset, y->nodeset)) return Nearness::kSameNode;
  const auto package = [&](hwloc_obj* place) {
    return hwloc_get_ancestor_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, place);
  };
  hwloc_obj* const mine = package(x);
  return mine != nullptr && mine == package(y) ? Nearness::kSamePackage : Nearness::kFar;
}

Nearness Topology::OfGpu(absl::string_view nic, absl::string_view address) const {
  hwloc_obj* const device = Nic(nic);
  hwloc_obj* const gpu = hwloc_get_pcidev_by_busidstring(topology_, std::string(address).c_str());
  if (device == nullptr || gpu == nullptr) return Nearness::kSameNode;
  return OfPlaces(device, gpu);
}

Nearness Topology::OfNode(absl::string_view nic, int numa_node) const {
  hwloc_obj* const device = Nic(nic);
  hwloc_obj* const node = numa_node < 0 ? nullptr
                                        : hwloc_get_numanode_obj_by_os_index(
                                              topology_, static_cast<unsigned>(numa_node));
  if (device == nullptr || node == nullptr) return Nearness::kSameNode;
  return OfPlaces(device, node);
}

std::vector<Nearness> Topology::OfMemory(const std::vector<std::string>& nics,
                                         const Memory& memory) const {
  int node = -1;
  for (uint64_t i = 0; i < kSamples && memory.bytes > 0; ++i) {
    const int of_page = NodeOfPage(memory.base + memory.bytes / kSamples * i);
    if (of_page < 0) continue;
    if (node >= 0 && of_page != node) {  // it is spread, so no NIC is nearer than another
      node = -1;
      break;
    }
    node = of_page;
  }
  std::vector<Nearness> out;
  for (const std::string& nic : nics) out.push_back(OfNode(nic, node));
  return out;
}

}  // namespace xfer::verbs
