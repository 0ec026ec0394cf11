#include "agent/exec/endpoint_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// Two jobs that sync with the same peer at once, with a few lanes each.
constexpr size_t kMaxIdle = 16;

}  // namespace

absl::StatusOr<Transport*> EndpointPool::Choose(const std::string& forced,
                                                const std::string& peer_node) const {
  const bool same_node = peer_node == self_.node();
  const std::string name = !forced.empty() ? forced : same_node ? "local" : "tcp";
  if (name == "local" && !same_node) {
    return absl::InvalidArgumentError(absl::StrCat("transport local cannot reach node ", peer_node,
                                                   " from node ", self_.node(),
                                                   "; leave the transport to xfer, or use tcp"));
  }
  for (Transport* transport : transports_) {
    if (transport->name() == name) return transport;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "node ", self_.node(), " has no transport ", name, "; it has ",
      absl::StrJoin(transports_, ", ", [](std::string* out, const Transport* transport) {
        absl::StrAppend(out, transport->name());
      })));
}

std::unique_ptr<Endpoint> EndpointPool::TakeIdle(const v1::Peer& peer, const Transport& transport) {
  const Key key = KeyOf(peer, transport);
  std::vector<std::unique_ptr<Endpoint>> dead;  // closed outside the lock
  std::unique_ptr<Endpoint> alive;
  absl::MutexLock lock(&mu_);
  // Those of an earlier start of the same agent can never be used again.
  auto entry = idle_.lower_bound({peer.node(), std::string(transport.name()), 0});
  while (entry != idle_.end() && std::get<0>(entry->first) == peer.node() &&
         std::get<1>(entry->first) == transport.name()) {
    if (entry->first == key) {
      ++entry;
      continue;
    }
    std::move(entry->second.begin(), entry->second.end(), std::back_inserter(dead));
    entry = idle_.erase(entry);
  }
  auto found = idle_.find(key);
  while (found != idle_.end() && !found->second.empty() && alive == nullptr) {
    std::unique_ptr<Endpoint> endpoint = std::move(found->second.back());
    found->second.pop_back();
    std::vector<Completion> none;
    if (endpoint->Poll(absl::ZeroDuration(), none).ok()) {
      alive = std::move(endpoint);
    } else {
      dead.push_back(std::move(endpoint));
    }
  }
  return alive;
}

absl::StatusOr<std::unique_ptr<Endpoint>> EndpointPool::Open(const v1::Peer& peer,
                                                             Transport& transport,
                                                             absl::Time deadline) {
  PeerAddress address{peer.node(), peer.incarnation(), peer.data_address()};
  if (peer.node() != self_.node()) {
    XFER_ASSIGN_OR_RETURN(const PeerIdentity identity, identifier_->Identify(peer, deadline));
    if (identity.node != peer.node() || identity.incarnation != peer.incarnation()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "at ", peer.peer_address(), " answers node ", identity.node, " incarnation ",
          identity.incarnation, ", and the plan is for node ", peer.node(), " incarnation ",
          peer.incarnation(), "; that agent was restarted: trigger the sync again"));
    }
    if (std::find(identity.transports.begin(), identity.transports.end(), transport.name()) ==
        identity.transports.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("node ", peer.node(), " cannot receive by transport ", transport.name(),
                       "; it can by ", absl::StrJoin(identity.transports, ", ")));
    }
    address.data_address = identity.data_address;
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = transport.Connect(address, deadline);
  if (endpoint.ok()) {
    spdlog::info("connected to node {} by {}", peer.node(), std::string(transport.name()));
  }
  return endpoint;
}

void EndpointPool::Keep(const v1::Peer& peer, const Transport& transport,
                        std::unique_ptr<Endpoint> endpoint) {
  absl::MutexLock lock(&mu_);
  std::vector<std::unique_ptr<Endpoint>>& kept = idle_[KeyOf(peer, transport)];
  if (kept.size() < kMaxIdle) kept.push_back(std::move(endpoint));
}

void EndpointPool::Clear() {
  std::map<Key, std::vector<std::unique_ptr<Endpoint>>> idle;
  absl::MutexLock lock(&mu_);
  idle.swap(idle_);
}

}  // namespace xfer
