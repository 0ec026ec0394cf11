#include "agent/transport/verbs/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "agent/transport/verbs/objects.h"

namespace xfer::verbs {
namespace {

namespace fs = std::filesystem;

constexpr char kKernelDevices[] = "/sys/class/infiniband";
constexpr char kDeviceFiles[] = "/dev/infiniband";

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string Size(uint64_t bytes) {
  if (bytes == std::numeric_limits<uint64_t>::max()) return "unlimited";
  if (bytes >= 1ull << 30)
    return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1ull << 30));
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1ull << 20));
}

// A kernel or driver without it says so before it looks at the descriptor, and -1 is none.
DmaBuf ProbeDmaBuf(const Context& context) {
  const absl::StatusOr<ProtectionDomain> pd = ProtectionDomain::Create(context);
  if (!pd.ok()) return DmaBuf::kUnknown;
  errno = 0;
  ibv_mr* const region = ibv_reg_dmabuf_mr(pd->get(), 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  const int error = errno;
  if (region != nullptr) ibv_dereg_mr(region);
  if (region != nullptr || error == EBADF) return DmaBuf::kYes;
  return error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS ? DmaBuf::kNo
                                                                            : DmaBuf::kUnknown;
}

NodeFacts::Device Examine(const std::string& name) {
  NodeFacts::Device device;
  device.name = name;
  const std::string sysfs = absl::StrCat(kKernelDevices, "/", name);
  const std::string node = FirstLine(sysfs + "/device/numa_node");
  if (!node.empty()) device.numa_node = std::atoi(node.c_str());
  const absl::StatusOr<Context> context = Context::Open(name);
  if (!context.ok()) {
    device.error = std::string(context.status().message());
    return device;
  }
  device.max_region_bytes = context->attributes().max_mr_size;
  device.dma_buf = ProbeDmaBuf(*context);
  for (uint8_t number = 1; number <= context->attributes().phys_port_cnt; ++number) {
    const absl::StatusOr<Port> port = context->QueryPort(number);
    if (!port.ok()) {
      device.error = std::string(port.status().message());
      continue;
    }
    device.ports.push_back(*port);
    device.interfaces.push_back(
        FirstLine(absl::StrCat(sysfs, "/ports/", number, "/gid_attrs/ndevs/0")));
  }
  return device;
}

void JudgePort(const Port& port, const std::string& interface, std::vector<Finding>& findings) {
  const std::string name = absl::StrCat(
      "port ", port.ToString(), interface.empty() ? "" : absl::StrCat(" (", interface, ")"));
  const std::string dev = interface.empty() ? "its interface" : interface;
  if (!port.active()) {
    findings.push_back(
        {Severity::kProblem, absl::StrCat(name, " is ", ibv_port_state_str(port.state)),
         port.ethernet ? absl::StrCat("ip link set ", dev, " up, and check cable and switch port")
                       : "check cable and switch port, and that a subnet manager (opensm) runs"});
    return;
  }
  if (port.ethernet) {
    const bool v2 = std::any_of(port.gids.begin(), port.gids.end(),
                                [](const Gid& gid) { return gid.type == GidType::kRoceV2; });
    const bool routable = std::any_of(port.gids.begin(), port.gids.end(), [](const Gid& gid) {
      return gid.type == GidType::kRoceV2 && !gid.link_local();
    });
    if (!v2) {
      findings.push_back({Severity::kProblem, absl::StrCat(name, " has no RoCE v2 GID"),
                          absl::StrCat("give ", dev,
                                       " an address, and let the NIC speak RoCE v2 (mlx5: "
                                       "cma_roce_mode or mlxconfig)")});
    } else if (!routable) {
      findings.push_back({Severity::kWarning, absl::StrCat(name, " has link-local GIDs only"),
                          absl::StrCat("ip addr add ADDRESS dev ", dev,
                                       " (link-local ones reach no other subnet)")});
    }
  }
  if (port.active_mtu < port.max_mtu) {
    findings.push_back(
        {Severity::kWarning, absl::StrCat(name, " has MTU ", port.active_mtu, " of ", port.max_mtu),
         port.ethernet
             ? absl::StrCat("ip link set ", dev, " mtu 9000 here, at the peers and on the switches")
             : "raise the partition's MTU at the subnet manager"});
  }
}

void JudgeMissing(const NodeFacts& facts, std::vector<Finding>& findings) {
  if (facts.kernel_devices.empty()) {
    findings.push_back(
        {Severity::kProblem, "the kernel has no RDMA device",
         "for a NIC that has one: load its driver (modprobe mlx5_ib), or run on a node with one; "
         "transfers go by tcp meanwhile"});
    return;
  }
  if (!facts.device_files) {
    findings.push_back({Severity::kProblem,
                        absl::StrCat("the kernel has ", absl::StrJoin(facts.kernel_devices, ", "),
                                     " but there is no ", kDeviceFiles),
                        "modprobe ib_uverbs; in a container, pass --device=/dev/infiniband"});
    return;
  }
  if (facts.devices.empty()) {
    findings.push_back(
        {Severity::kProblem,
         absl::StrCat("libibverbs does not see ", absl::StrJoin(facts.kernel_devices, ", ")),
         "install the user-space drivers: apt-get install ibverbs-providers"});
  }
}

std::vector<NodeFacts::Gpu> ExamineGpus(const std::vector<NodeFacts::Device>& devices) {
  std::vector<NodeFacts::Gpu> out;
  const auto topology = Topology::Load();
  if (!topology.ok()) return out;
  for (const Topology::Gpu& gpu : (*topology)->Gpus()) {
    NodeFacts::Gpu& facts = out.emplace_back();
    facts.address = gpu.address;
    facts.model = gpu.model;
    for (const NodeFacts::Device& device : devices) {
      facts.nics.push_back({device.name, (*topology)->OfGpu(device.name, gpu.address)});
    }
    std::stable_sort(facts.nics.begin(), facts.nics.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
  }
  return out;
}

void JudgeGpus(const NodeFacts& facts, std::vector<Finding>& findings) {
  for (const NodeFacts::Gpu& gpu : facts.gpus) {
    if (gpu.nics.empty() || gpu.nics.front().second != Nearness::kFar) continue;
    findings.push_back(
        {Severity::kWarning, absl::StrCat("every NIC is across sockets from GPU ", gpu.address),
         "put a NIC into a slot of its socket, or expect less than the link's speed"});
  }
  if (facts.gpus.empty()) return;
  for (const NodeFacts::Device& device : facts.devices) {
    if (device.dma_buf != DmaBuf::kNo) continue;
    findings.push_back(
        {Severity::kWarning,
         absl::StrCat("device ", device.name, " cannot register GPU memory by dma-buf"),
         "use a kernel of 5.12 or later and the NIC's present driver; GPU memory "
         "goes by way of host memory meanwhile"});
  }
}

}  // namespace

absl::string_view Name(DmaBuf support) {
  switch (support) {
    case DmaBuf::kYes:
      return "yes";
    case DmaBuf::kNo:
      return "no";
    case DmaBuf::kUnknown:
      break;
  }
  return "unknown";
}

NodeFacts CollectFacts() {
  NodeFacts facts;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kKernelDevices, error)) {
    facts.kernel_devices.push_back(entry.path().filename().string());
  }
  std::sort(facts.kernel_devices.begin(), facts.kernel_devices.end());
  facts.device_files = fs::exists(kDeviceFiles, error);
  for (const std::string& name : ListDevices()) facts.devices.push_back(Examine(name));
  facts.gpus = ExamineGpus(facts.devices);
  facts.locked_memory_limit = LockedMemoryLimit();
  facts.may_lock_any = MayLockAnyMemory();
  facts.memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return facts;
}

std::vector<Finding> Judge(const NodeFacts& facts) {
  std::vector<Finding> findings;
  JudgeMissing(facts, findings);
  double fastest = 0;
  for (const NodeFacts::Device& device : facts.devices) {
    if (!device.error.empty()) {
      findings.push_back({Severity::kProblem, device.error,
                          absl::StrCat("run as a user that may use ", kDeviceFiles, "/uverbs*")});
    }
    for (size_t i = 0; i < device.ports.size(); ++i) {
      JudgePort(device.ports[i], device.interfaces[i], findings);
      if (device.ports[i].active()) fastest = std::max(fastest, device.ports[i].gbit_per_s);
    }
  }
  for (const NodeFacts::Device& device : facts.devices) {
    for (const Port& port : device.ports) {
      if (!port.active() || port.gbit_per_s == 0 || port.gbit_per_s * 2 > fastest) continue;
      findings.push_back(
          {Severity::kWarning,
           absl::StrFormat("port %s runs at %.0f Gbit/s, another port at %.0f", port.ToString(),
                           port.gbit_per_s, fastest),
           "leave slow ports out of the agents' `nics`, or check cable and switch port"});
    }
  }
  JudgeGpus(facts, findings);
  const bool limited = !facts.may_lock_any && facts.locked_memory_limit < facts.memory_bytes;
  if (!facts.devices.empty() && limited) {
    findings.push_back(
        {Severity::kProblem,
         absl::StrCat("this process may lock ", Size(facts.locked_memory_limit), " of ",
                      Size(facts.memory_bytes), " memory; registered memory is locked"),
         "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; containers: --ulimit memlock=-1"});
  }
  return findings;
}

std::string Describe(const NodeFacts& facts) {
  std::string out;
  for (const NodeFacts::Device& device : facts.devices) {
    absl::StrAppend(&out, "device ", device.name);
    if (device.numa_node >= 0) absl::StrAppend(&out, ", NUMA node ", device.numa_node);
    if (device.max_region_bytes > 0)
      absl::StrAppend(&out, ", regions up to ", Size(device.max_region_bytes));
    absl::StrAppend(&out, ", dma-buf ", Name(device.dma_buf));
    absl::StrAppend(&out, "\n");
    for (size_t i = 0; i < device.ports.size(); ++i) {
      const Port& port = device.ports[i];
      absl::StrAppend(&out, "  port ", port.ToString(), " ", ibv_port_state_str(port.state), ", ",
                      port.ethernet ? "RoCE" : "InfiniBand");
      if (!device.interfaces[i].empty()) absl::StrAppend(&out, " on ", device.interfaces[i]);
      absl::StrAppendFormat(&out, ", %.0f Gbit/s, MTU %d of %d, GIDs", port.gbit_per_s,
                            port.active_mtu, port.max_mtu);
      for (const Gid& gid : port.gids) absl::StrAppend(&out, " ", gid.index, "=", gid.ToString());
      absl::StrAppend(&out, "\n");
    }
  }
  if (facts.devices.empty()) absl::StrAppend(&out, "no RDMA device\n");
  for (const NodeFacts::Gpu& gpu : facts.gpus) {
    absl::StrAppend(&out, "GPU ", gpu.address, gpu.model.empty() ? "" : " ", gpu.model);
    for (const auto& [nic, nearness] : gpu.nics) {
      absl::StrAppend(&out, ", ", nic, " ", Describe(nearness));
    }
    absl::StrAppend(&out, "\n");
  }
  if (facts.gpus.empty()) absl::StrAppend(&out, "no GPU\n");
  absl::StrAppend(&out, "locked memory: ",
                  facts.may_lock_any ? "no limit for this user" : Size(facts.locked_memory_limit),
                  "\n");
  return out;
}

}  // namespace xfer::verbs
