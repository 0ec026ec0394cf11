#include "agent/transport/verbs/rails.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/transport/socket.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer::verbs {
namespace {

void Signal(int eventfd) {
  const uint64_t one = 1;
  // It fails only when the counter is full, and then the reader is awake anyway.
  [[maybe_unused]] const ssize_t n = write(eventfd, &one, sizeof(one));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Rails>> Rails::Open(absl::Span<const std::string> nics) {
  // Registered pages would otherwise move away from under the device when a process that shares
  // them forks (man ibv_fork_init). Kernels from 5.12 on need nothing, and then it does nothing.
  if (const int error = ibv_fork_init(); error != 0) {
    spdlog::warn("verbs: ibv_fork_init failed ({}): do not fork while memory is registered", error);
  }
  std::shared_ptr<Rails> rails(new Rails());
  const bool all = nics.empty();
  const std::vector<std::string> present = ListDevices();
  if (present.empty()) {
    return absl::NotFoundError(
        "verbs: no RDMA device on this node (for a NIC that has one: is its driver loaded, and "
        "/dev/infiniband in this container?)");
  }
  const std::vector<std::string> wanted =
      all ? present : std::vector<std::string>(nics.begin(), nics.end());
  for (const std::string& text : wanted) {
    XFER_ASSIGN_OR_RETURN(const NicName nic, ParseNicName(text));
    XFER_RETURN_IF_ERROR(Annotate(rails->AddDevice(nic, all), "verbs"));
  }
  if (rails->ports_.empty()) {
    return absl::NotFoundError(absl::StrCat("verbs: no active port on ",
                                            absl::StrJoin(present, ", "),
                                            "; check the link (ip link, rdma link) and its cable"));
  }
  if (rails->devices_.size() > 1) {
    absl::StatusOr<std::shared_ptr<const Topology>> topology = Topology::Load();
    if (topology.ok()) {
      rails->topology_ = *std::move(topology);
    } else {
      spdlog::warn("verbs: all NICs count as equally near: {}", topology.status().ToString());
    }
  }
  rails->stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!rails->stop_.valid()) return ErrnoStatus(errno, "verbs: eventfd");
  for (const Device& device : rails->devices_) {
    const int fd = device.context.get()->async_fd;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
      return ErrnoStatus(errno, absl::StrCat("verbs: events of ", device.context.name()));
    }
  }
  rails->thread_ = std::thread([raw = rails.get()] { raw->Listen(); });
  return rails;
}

Rails::~Rails() {
  if (!thread_.joinable()) return;
  Signal(stop_.get());
  thread_.join();
}

absl::Status Rails::AddDevice(const NicName& nic, bool only_active) {
  size_t index = 0;
  while (index < devices_.size() && devices_[index].context.name() != nic.device) ++index;
  if (index == devices_.size()) {
    XFER_ASSIGN_OR_RETURN(Context context, Context::Open(nic.device));
    XFER_ASSIGN_OR_RETURN(ProtectionDomain pd, ProtectionDomain::Create(context));
    devices_.push_back({std::move(context), std::move(pd)});
  }
  const Context& context = devices_[index].context;
  const uint8_t count = context.attributes().phys_port_cnt;
  if (nic.port > count) {
    return absl::NotFoundError(
        absl::StrCat("RDMA device ", nic.device, " has ", count, " ports, and no port ", nic.port));
  }
  bool found = false;
  for (uint8_t number = 1; number <= count; ++number) {
    if (nic.port != 0 && number != nic.port) continue;
    if (Find(nic.device, number).ok()) {  // named twice
      found = true;
      continue;
    }
    XFER_ASSIGN_OR_RETURN(const Port port, context.QueryPort(number));
    if (!port.active() && nic.port == 0) continue;
    auto state = std::make_unique<PortState>();
    state->device = index;
    state->number = number;
    state->down.store(!port.active(), std::memory_order_release);
    ports_.push_back(std::move(state));
    found = true;
  }
  if (found) return absl::OkStatus();
  // A device without a port in use is not kept: memory would be registered with it for nothing.
  if (std::none_of(ports_.begin(), ports_.end(),
                   [&](const auto& p) { return p->device == index; })) {
    devices_.erase(devices_.begin() + static_cast<ptrdiff_t>(index));
  }
  if (only_active) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "RDMA device ", nic.device, " has no active port; check the link (rdma link) and its cable"));
}

std::string Rails::name(size_t port) const {
  return absl::StrCat(devices_[ports_[port]->device].context.name(), ":", ports_[port]->number);
}

absl::StatusOr<Port> Rails::Query(size_t port) const {
  return devices_[ports_[port]->device].context.QueryPort(ports_[port]->number);
}

absl::StatusOr<size_t> Rails::Find(absl::string_view device, uint8_t number) const {
  for (size_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i]->number == number && devices_[ports_[i]->device].context.name() == device)
      return i;
  }
  return absl::NotFoundError(
      absl::StrCat("verbs: port ", device, ":", number, " is none of this node's rails"));
}

std::vector<Nearness> Rails::NearnessTo(const Memory& memory) const {
  if (topology_ == nullptr) return std::vector<Nearness>(devices_.size(), Nearness::kSameNode);
  std::vector<std::string> names;
  for (const Device& device : devices_) names.push_back(device.context.name());
  return topology_->OfMemory(names, memory);
}

void Rails::Notify(int eventfd) {
  absl::MutexLock lock(&mu_);
  listeners_.insert(eventfd);
}

void Rails::Forget(int eventfd) {
  absl::MutexLock lock(&mu_);
  listeners_.erase(eventfd);
}

void Rails::Listen() {
  std::vector<pollfd> fds;
  for (const Device& device : devices_) fds.push_back({device.context.get()->async_fd, POLLIN, 0});
  fds.push_back({stop_.get(), POLLIN, 0});
  while (true) {
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) {
      spdlog::error(
          "verbs: poll for device events: errno {}; port states are not followed any more", errno);
      return;
    }
    if (fds.back().revents != 0) return;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (fds[i].revents != 0) HandleEvents(devices_[i]);
    }
  }
}

void Rails::HandleEvents(const Device& device) {
  ibv_async_event event = {};
  while (ibv_get_async_event(device.context.get(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    const int port = event.element.port_num;
    const bool of_qp = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                       type == IBV_EVENT_QP_ACCESS_ERR;
    const uint32_t qp = of_qp ? event.element.qp->qp_num : 0;
    // At once: destroying an object waits for its events.
    ibv_ack_async_event(&event);
    const std::string name = device.context.name();
    switch (type) {
      case IBV_EVENT_PORT_ERR:
        spdlog::warn("verbs: port {}:{} is down; its traffic goes by the other rails", name, port);
        SetDown(device.context.get(), port, true);
        break;
      case IBV_EVENT_PORT_ACTIVE:
        spdlog::info("verbs: port {}:{} is up; new connections use it", name, port);
        SetDown(device.context.get(), port, false);
        break;
      case IBV_EVENT_DEVICE_FATAL:
        spdlog::error(
            "verbs: device {} has failed; see dmesg, restart the agent when it works again", name);
        SetDown(device.context.get(), 0, true);
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        // The sender sees it as a failed completion and acts there.
        spdlog::warn("verbs: device {}: {} on queue pair {}", name, ibv_event_type_str(type), qp);
        break;
      default:
        spdlog::debug("verbs: device {}: {}", name, ibv_event_type_str(type));
        break;
    }
  }
}

void Rails::SetDown(const ibv_context* context, int number, bool down) {
  for (const auto& port : ports_) {
    if (devices_[port->device].context.get() != context || (number != 0 && port->number != number))
      continue;
    port->down.store(down, std::memory_order_release);
  }
  absl::MutexLock lock(&mu_);
  for (const int fd : listeners_) Signal(fd);
}

}  // namespace xfer::verbs
