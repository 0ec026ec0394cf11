// How near NICs, GPUs and memory are to each other, as hwloc sees the machine.
#ifndef XFER_AGENT_TRANSPORT_VERBS_TOPOLOGY_H_
#define XFER_AGENT_TRANSPORT_VERBS_TOPOLOGY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/transport/transport.h"

struct hwloc_topology;
struct hwloc_obj;

namespace xfer::verbs {

// In the order of their cost.
enum class Nearness : uint8_t {
  kSameSwitch = 0,   // below one PCI bridge that is not a root port of the CPU
  kSameNode = 1,     // one NUMA node; also where nothing is known, so that nothing is ruled out
  kSamePackage = 2,  // one socket
  kFar = 3,          // across sockets
};
// "one PCI switch", "one NUMA node", "one socket", "across sockets"
absl::string_view Describe(Nearness nearness);

// Immutable; thread-safe.
class Topology {
 public:
  // Of this machine. FailedPrecondition: hwloc cannot read it.
  static absl::StatusOr<std::shared_ptr<const Topology>> Load();
  // Of an hwloc XML document (lstopo --of xml), for tests.
  static absl::StatusOr<std::shared_ptr<const Topology>> FromXml(const std::string& document);
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  struct Gpu {
    std::string address;  // PCI, "0000:1b:00.0"
    std::string model;    // "" where not known
  };
  std::vector<Gpu> Gpus() const;

  // From an RDMA device ("mlx5_0") to a GPU's PCI address, or to a NUMA node (the system's number).
  Nearness OfGpu(absl::string_view nic, absl::string_view address) const;
  Nearness OfNode(absl::string_view nic, int numa_node) const;
  // To memory: its NUMA node, where all samples of it lie on one; otherwise all NICs are alike.
  // `nics` are RDMA devices; one answer each.
  std::vector<Nearness> OfMemory(const std::vector<std::string>& nics, const Memory& memory) const;

 private:
  explicit Topology(hwloc_topology* topology) : topology_(topology) {}
  static absl::StatusOr<std::shared_ptr<const Topology>> Finish(hwloc_topology* topology);
  hwloc_obj* Nic(absl::string_view name) const;  // null: not known
  Nearness OfPlaces(hwloc_obj* a, hwloc_obj* b) const;

  hwloc_topology* const topology_;
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_TOPOLOGY_H_
