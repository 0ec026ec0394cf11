#include "agent/transport/verbs/device.h"

#include <arpa/inet.h>
#include <fcntl.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/transport/socket.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace xfer::verbs {
namespace {

using DeviceList = std::unique_ptr<ibv_device*, void (*)(ibv_device**)>;

DeviceList GetDevices(int& count) {
  count = 0;
  return {ibv_get_device_list(&count), [](ibv_device** list) {
            if (list != nullptr) ibv_free_device_list(list);
          }};
}

// Per lane; the codes are those of the PortInfo attribute (IBA volume 1, LinkSpeedActive).
double LaneGbit(uint32_t speed) {
  switch (speed) {
    case 1:
      return 2.5;
    case 2:
      return 5;
    case 4:
    case 8:
      return 10;
    case 16:
      return 14.0625;
    case 32:
      return 25.78125;
    case 64:
      return 53.125;
    case 128:
      return 106.25;
    default:
      return 0;
  }
}

double Lanes(uint8_t width) {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

// Smaller is better; nullopt: not to be used.
std::optional<int> Rank(const Gid& gid) {
  switch (gid.type) {
    case GidType::kInfiniBand:
      return 0;
    case GidType::kRoceV1:
      return std::nullopt;
    case GidType::kRoceV2:
      break;
  }
  if (gid.ipv4_mapped()) return 1;
  return gid.link_local() ? 3 : 2;
}

// libibverbs tries several ways, and its errno is the last one's: the file itself says more.
absl::Status OpenError(const ibv_device& device, int error) {
  const std::string path = absl::StrCat("/dev/infiniband/", device.dev_name);
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) error = errno;
  return ErrnoStatus(
      error == 0 ? EIO : error,
      absl::StrCat("RDMA device ", device.name, ": cannot open ", path,
                   " (may this user read and write it, and is it in this container?)"));
}

std::string Describe(absl::Span<const Gid> gids) {
  constexpr std::array<const char*, 3> kTypes = {"InfiniBand", "RoCE v1", "RoCE v2"};
  if (gids.empty()) return "none";
  return absl::StrJoin(gids, ", ", [&](std::string* out, const Gid& gid) {
    absl::StrAppend(out, gid.ToString(), " (", kTypes[static_cast<size_t>(gid.type)], ")");
  });
}

}  // namespace

bool Gid::ipv4_mapped() const {
  return IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(gid.raw));
}

bool Gid::link_local() const {
  return IN6_IS_ADDR_LINKLOCAL(reinterpret_cast<const in6_addr*>(gid.raw));
}

std::string Gid::ToString() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (ipv4_mapped()) {
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  }
  return text;
}

std::string Port::ToString() const { return absl::StrCat(device, ":", number); }

uint32_t MtuBytes(ibv_mtu mtu) { return 128u << static_cast<uint32_t>(mtu); }

ibv_mtu MtuOfBytes(uint32_t bytes) {
  ibv_mtu mtu = IBV_MTU_256;
  for (const ibv_mtu larger : {IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (MtuBytes(larger) <= bytes) mtu = larger;
  }
  return mtu;
}

std::vector<std::string> ListDevices() {
  int count = 0;
  const DeviceList list = GetDevices(count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(ibv_get_device_name(list.get()[i]));
  return names;
}

absl::StatusOr<Context> Context::Open(absl::string_view device) {
  int count = 0;
  const DeviceList list = GetDevices(count);
  for (int i = 0; i < count; ++i) {
    ibv_device* const found = list.get()[i];
    if (ibv_get_device_name(found) != device) continue;
    Context context;
    errno = 0;
    context.context_.reset(ibv_open_device(found));
    if (context.context_ == nullptr) {
      return OpenError(*found, errno);
    }
    if (const int error = ibv_query_device(context.get(), &context.attributes_); error != 0) {
      return ErrnoStatus(error, absl::StrCat("RDMA device ", device, ": ibv_query_device"));
    }
    return context;
  }
  const std::vector<std::string> names = ListDevices();
  return absl::NotFoundError(absl::StrCat(
      "no RDMA device ", device, "; there ",
      names.empty()
          ? "are none (is the NIC's driver loaded, and /dev/infiniband in this container?)"
          : absl::StrCat("are: ", absl::StrJoin(names, ", "))));
}

absl::StatusOr<Port> Context::QueryPort(uint8_t number) const {
  Port port;
  port.device = name();
  port.number = number;
  ibv_port_attr attributes = {};
  if (const int error = ibv_query_port(get(), number, &attributes); error != 0) {
    return ErrnoStatus(error, absl::StrCat("RDMA port ", port.ToString(), ": ibv_query_port"));
  }
  port.state = attributes.state;
  port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.active_mtu = MtuBytes(attributes.active_mtu);
  port.max_mtu = MtuBytes(attributes.max_mtu);
  port.gbit_per_s = LaneGbit(attributes.active_speed) * Lanes(attributes.active_width);
  port.lid = attributes.lid;
  for (int i = 0; i < attributes.gid_tbl_len; ++i) {
    ibv_gid_entry entry = {};
    const int error = ibv_query_gid_ex(get(), number, static_cast<uint32_t>(i), &entry, 0);
    if (error == ENODATA) continue;  // this entry is not set
    if (error != 0) {
      return ErrnoStatus(error, absl::StrCat("RDMA port ", port.ToString(), ": GID ", i));
    }
    Gid gid;
    gid.index = entry.gid_index;
    gid.gid = entry.gid;
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidType::kRoceV2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1
                                                        : GidType::kInfiniBand;
    port.gids.push_back(gid);
  }
  return port;
}

absl::StatusOr<NicName> ParseNicName(absl::string_view text) {
  NicName nic;
  const size_t colon = text.rfind(':');
  nic.device = std::string(text.substr(0, colon));
  uint32_t port = 0;
  if (colon != absl::string_view::npos &&
      (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 255)) {
    return absl::InvalidArgumentError(
        absl::StrCat("NIC \"", text, "\" is not DEVICE or DEVICE:PORT, e.g. mlx5_0 or mlx5_0:1"));
  }
  if (nic.device.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("NIC \"", text, "\" names no device, e.g. mlx5_0"));
  }
  nic.port = static_cast<uint8_t>(port);
  return nic;
}

absl::StatusOr<GidPair> ChooseGids(absl::Span<const Gid> local, absl::Span<const Gid> remote) {
  std::optional<GidPair> best;
  int best_rank = 0;
  for (const Gid& mine : local) {
    const std::optional<int> rank = Rank(mine);
    if (!rank.has_value() || (best.has_value() && *rank >= best_rank)) continue;
    for (const Gid& theirs : remote) {
      if (Rank(theirs) != rank) continue;
      best = GidPair{mine, theirs};
      best_rank = *rank;
      break;
    }
  }
  if (best.has_value()) return *best;
  return absl::NotFoundError(
      absl::StrCat("no two GIDs of one kind (RoCE v2 over IPv4, over IPv6, or InfiniBand): here ",
                   Describe(local), "; there ", Describe(remote),
                   "; give both ports an address of the same family"));
}

}  // namespace xfer::verbs
