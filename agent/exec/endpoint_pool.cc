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
constexpr absl::string_view kLocal = "local";

bool Has(const std::vector<std::string>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

absl::StatusOr<Transport*> EndpointPool::Choose(const std::string& forced, const v1::Peer& peer) {
  const bool same_node = peer.node() == self_.node();
  if (forced == kLocal && !same_node) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport local cannot reach node ", peer.node(), " from node ", self_.node(),
                     "; leave the transport to xfer, or use verbs or tcp"));
  }
  std::vector<Transport*> possible;
  for (Transport* transport : transports_) {
    if (forced.empty() ? (same_node || transport->name() != kLocal) : transport->name() == forced) {
      possible.push_back(transport);
    }
  }
  if (possible.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", self_.node(), " has no transport ",
        forced.empty() ? absl::StrCat("to another node, as ", peer.node(), " is") : forced,
        "; it has ",
        absl::StrJoin(
            transports_, ", ",
            [](std::string* out, const Transport* t) { absl::StrAppend(out, t->name()); }),
        " (xfer-agent --transport)"));
  }
  // Within the node nobody has to be asked.
  if (same_node || possible.size() == 1) return possible.front();
  absl::MutexLock lock(&mu_);
  const auto known = best_.find(peer.node());
  if (known == best_.end() || known->second.incarnation != peer.incarnation()) return nullptr;
  return known->second.transport;
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

absl::StatusOr<PeerIdentity> EndpointPool::Identify(const v1::Peer& peer, absl::Time deadline) {
  XFER_ASSIGN_OR_RETURN(PeerIdentity identity, identifier_->Identify(peer, deadline));
  if (identity.node == peer.node() && identity.incarnation == peer.incarnation()) return identity;
  return absl::FailedPreconditionError(absl::StrCat(
      "at ", peer.peer_address(), " answers node ", identity.node, " incarnation ",
      identity.incarnation, ", and the plan is for node ", peer.node(), " incarnation ",
      peer.incarnation(), "; that agent was restarted: trigger the sync again"));
}

absl::StatusOr<std::unique_ptr<Endpoint>> EndpointPool::Connect(const v1::Peer& peer,
                                                                Transport& transport,
                                                                const std::string& data_address,
                                                                absl::Time deadline) {
  const PeerAddress address{peer.node(), peer.incarnation(), data_address, peer.peer_address()};
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = transport.Connect(address, deadline);
  if (endpoint.ok()) {
    spdlog::info("connected to node {} by {}", peer.node(), std::string(transport.name()));
  }
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Endpoint>> EndpointPool::Open(const v1::Peer& peer,
                                                             Transport& transport,
                                                             absl::Time deadline) {
  if (peer.node() == self_.node()) {
    return Connect(peer, transport, peer.data_address(), deadline);
  }
  XFER_ASSIGN_OR_RETURN(const PeerIdentity identity, Identify(peer, deadline));
  if (!Has(identity.transports, transport.name())) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", peer.node(), " cannot receive by transport ", transport.name(),
                     "; it can by ", absl::StrJoin(identity.transports, ", ")));
  }
  return Connect(peer, transport, identity.data_address, deadline);
}

absl::StatusOr<EndpointPool::Opened> EndpointPool::OpenBest(const v1::Peer& peer,
                                                            absl::Time deadline) {
  XFER_ASSIGN_OR_RETURN(const PeerIdentity identity, Identify(peer, deadline));
  absl::Status failure = absl::FailedPreconditionError(
      absl::StrCat("node ", peer.node(), " receives by ", absl::StrJoin(identity.transports, ", "),
                   ", and node ", self_.node(),
                   " has none of these; start both agents with a common one "
                   "(xfer-agent --transport)"));
  for (Transport* transport : transports_) {
    if (transport->name() == kLocal || !Has(identity.transports, transport->name())) continue;
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint =
        Connect(peer, *transport, identity.data_address, deadline);
    if (endpoint.ok()) {
      absl::MutexLock lock(&mu_);
      best_[peer.node()] = {peer.incarnation(), transport};
      return Opened{transport, *std::move(endpoint)};
    }
    failure = endpoint.status();
    if (absl::Now() >= deadline) break;
    spdlog::warn("node {} is not reached by {}, which both have: {}", peer.node(),
                 std::string(transport->name()), failure.ToString());
  }
  return failure;
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
