// What RDMA devices this machine has: ports, their state and speed, GIDs, and which GIDs two ends
// use.
#ifndef XFER_AGENT_TRANSPORT_VERBS_DEVICE_H_
#define XFER_AGENT_TRANSPORT_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace xfer::verbs {

enum class GidType : uint8_t { kInfiniBand = 0, kRoceV1 = 1, kRoceV2 = 2 };

struct Gid {
  uint32_t index = 0;  // in its port's table
  GidType type = GidType::kInfiniBand;
  ibv_gid gid = {};

  bool ipv4_mapped() const;
  bool link_local() const;  // fe80::/10
  // "192.0.2.1" for an IPv4-mapped one, else "fd00::1"
  std::string ToString() const;
};

struct Port {
  std::string device;
  uint8_t number = 1;
  ibv_port_state state = IBV_PORT_NOP;
  bool ethernet = true;     // RoCE; else InfiniBand
  uint32_t active_mtu = 0;  // bytes, of an InfiniBand packet's payload
  uint32_t max_mtu = 0;     // bytes
  double gbit_per_s = 0;    // of the link as it is now; 0: not known
  uint16_t lid = 0;         // InfiniBand only
  std::vector<Gid> gids;    // those that are set

  bool active() const { return state == IBV_PORT_ACTIVE; }
  // "mlx5_0:1"
  std::string ToString() const;
};

// An opened device. Move-only; closing it needs all that was made from it to be gone. Thread-safe
// but for moves.
class Context {
 public:
  // NotFound names the device and those that there are; PermissionDenied names its /dev/infiniband
  // file.
  static absl::StatusOr<Context> Open(absl::string_view device);

  ibv_context* get() const { return context_.get(); }
  std::string name() const { return ibv_get_device_name(context_->device); }
  const ibv_device_attr& attributes() const { return attributes_; }
  // Asks the device now.
  absl::StatusOr<Port> QueryPort(uint8_t number) const;

 private:
  struct Close {
    void operator()(ibv_context* context) const { ibv_close_device(context); }
  };
  std::unique_ptr<ibv_context, Close> context_;
  ibv_device_attr attributes_ = {};
};

// Names of all devices, in the system's order; empty where there is none (or no kernel support).
std::vector<std::string> ListDevices();

// One entry of the option `nics`: "mlx5_0" (all its active ports) or "mlx5_0:1". InvalidArgument.
struct NicName {
  std::string device;
  uint8_t port = 0;  // 0: all
};
absl::StatusOr<NicName> ParseNicName(absl::string_view text);

// GIDs that reach each other: both RoCE v2 (v1 does not cross a router and many switches drop it)
// or both InfiniBand, and of one address family. Prefers RoCE v2 over IPv4, then a global IPv6
// address, then link-local ones; in each the first of each table. NotFound says what both ends
// have.
struct GidPair {
  Gid local, remote;
};
absl::StatusOr<GidPair> ChooseGids(absl::Span<const Gid> local, absl::Span<const Gid> remote);

// 1024 for IBV_MTU_1024 and back; the other way round takes the largest that fits.
uint32_t MtuBytes(ibv_mtu mtu);
ibv_mtu MtuOfBytes(uint32_t bytes);

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_DEVICE_H_
