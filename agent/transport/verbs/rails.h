// The devices and ports that a transport uses, and what happens to them.
#ifndef XFER_AGENT_TRANSPORT_VERBS_RAILS_H_
#define XFER_AGENT_TRANSPORT_VERBS_RAILS_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs/objects.h"
#include "agent/transport/verbs/topology.h"
#include "common/base/unique_fd.h"

namespace xfer::verbs {

// A node's rails: its ports, as named by the option `nics`. Ports come and go while it runs; a
// thread listens to the devices' events. Thread-safe.
class Rails {
 public:
  struct Device {
    Context context;
    ProtectionDomain pd;
  };

  // Empty `nics`: all ports that are active. NotFound: there is no device, no such port, or no
  // active one.
  static absl::StatusOr<std::shared_ptr<Rails>> Open(absl::Span<const std::string> nics);
  ~Rails();

  absl::Span<const Device> devices() const { return devices_; }
  // How near each of devices() is to memory.
  std::vector<Nearness> NearnessTo(const Memory& memory) const;

  size_t ports() const { return ports_.size(); }
  std::string name(size_t port) const;  // "mlx5_0:1"
  size_t device_of(size_t port) const { return ports_[port]->device; }
  // Asks the device for the port's present state and addresses.
  absl::StatusOr<Port> Query(size_t port) const;
  // False after the device has told that the port (or all of the device) is down, until it is up
  // again.
  bool usable(size_t port) const { return !ports_[port]->down.load(std::memory_order_acquire); }
  // Index of a port, or NotFound.
  absl::StatusOr<size_t> Find(absl::string_view device, uint8_t number) const;

  // `eventfd` is written to whenever a port's state changes, until Forget().
  void Notify(int eventfd);
  void Forget(int eventfd);

 private:
  struct PortState {
    size_t device = 0;
    uint8_t number = 1;
    std::atomic<bool> down{false};
  };

  Rails() = default;
  absl::Status AddDevice(const NicName& nic, bool only_active);
  void Listen();
  void HandleEvents(const Device& device);
  void SetDown(const ibv_context* context, int number, bool down);

  std::shared_ptr<const Topology> topology_;  // null: not known
  std::vector<Device> devices_;
  std::vector<std::unique_ptr<PortState>> ports_;
  UniqueFd stop_;
  std::thread thread_;
  absl::Mutex mu_;
  absl::flat_hash_set<int> listeners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_RAILS_H_
