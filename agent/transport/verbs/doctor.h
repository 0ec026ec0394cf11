// Looks at what the verbs transport needs of a node, and says what is wrong and how to mend it.
#ifndef XFER_AGENT_TRANSPORT_VERBS_DOCTOR_H_
#define XFER_AGENT_TRANSPORT_VERBS_DOCTOR_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs/topology.h"

namespace xfer::verbs {

// Whether a device can register GPU memory that comes as a dma-buf.
enum class DmaBuf : uint8_t { kUnknown, kYes, kNo };
absl::string_view Name(DmaBuf support);  // "unknown", "yes", "no"

// What was found, without judgement.
struct NodeFacts {
  struct Device {
    std::string name;
    std::string error;  // why it cannot be used; "": it can
    uint64_t max_region_bytes = 0;
    int numa_node = -1;  // -1: not known
    std::vector<Port> ports;
    std::vector<std::string> interfaces;  // network interface of each port; "": none, or not known
    DmaBuf dma_buf = DmaBuf::kUnknown;
  };
  struct Gpu {
    std::string address;  // PCI
    std::string model;
    std::vector<std::pair<std::string, Nearness>> nics;  // the nearest first
  };
  std::vector<std::string> kernel_devices;  // that the kernel has (/sys/class/infiniband)
  std::vector<Device> devices;              // that libibverbs sees
  bool device_files = false;                // /dev/infiniband is there
  uint64_t locked_memory_limit = 0;         // bytes; UINT64_MAX: none
  bool may_lock_any = false;                // the limit does not apply to this process
  uint64_t memory_bytes = 0;                // of the node
  std::vector<Gpu> gpus;
};
NodeFacts CollectFacts();

enum class Severity { kWarning, kProblem };
// One line each: the thing with its value, then what to do.
struct Finding {
  Severity severity = Severity::kProblem;
  std::string what;
  std::string remedy;
};
// Empty: nothing is wrong. A problem keeps the transport (or a port) from working, a warning from
// being fast.
std::vector<Finding> Judge(const NodeFacts& facts);

// The facts as lines for a terminal, each ended by a newline.
std::string Describe(const NodeFacts& facts);

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_DOCTOR_H_
