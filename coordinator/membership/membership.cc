#include "coordinator/membership/membership.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace xfer {
namespace {

// Lost nodes are listed for people; the list of those long gone must not grow for ever.
constexpr size_t kMaxLostNodes = 1000;

std::string Who(const NodeHello& hello) {
  return absl::StrFormat("%s (incarnation %x, peer address %s)", hello.name, hello.incarnation,
                         hello.peer_address);
}

}  // namespace

Membership::Membership(const Options& options, MembershipListener* listener)
    : clock_(options.clock),
      lease_ns_(absl::ToInt64Nanoseconds(options.lease)),
      tick_ns_(absl::ToInt64Nanoseconds(options.tick)),
      listener_(listener),
      last_tick_ns_(options.clock->MonotonicNanos()) {}

bool Membership::Living(const NodeView& node, int64_t now) const {
  return node.state == NodeState::kAlive && node.session != 0 &&
         now - node.last_heard_ns <= lease_ns_;
}

absl::Status Membership::CheckConflicts(const NodeHello& hello, int64_t now) const {
  for (const auto& [name, node] : nodes_) {
    if (!Living(node, now)) continue;
    if (name == hello.name) {
      if (node.hello.incarnation == hello.incarnation) continue;
      return absl::AlreadyExistsError(
          absl::StrCat("the node name is taken: ", Who(node.hello), " lives, so ", Who(hello),
                       " is refused; give one of the two agents another --name"));
    }
    for (const auto& [what, theirs, ours] :
         {std::tuple("peer address", &node.hello.peer_address, &hello.peer_address),
          std::tuple("data address", &node.hello.data_address, &hello.data_address)}) {
      if (*theirs != *ours || ours->empty()) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          "the ", what, " ", *ours, " is taken: node ", name, " lives and advertises it, so node ",
          hello.name, " is refused; let one of the two advertise another host or port"));
    }
  }
  return absl::OkStatus();
}

void Membership::Lose(NodeView& node, const std::string& reason, Changes& changes) {
  if (node.session != 0) {
    sessions_.erase(node.session);
    changes.closing.push_back({node.session, absl::UnavailableError(reason)});
    node.session = 0;
  }
  if (node.state == NodeState::kLost) return;
  node.state = NodeState::kLost;
  changes.lost.push_back({node.hello.name, node.hello.incarnation, reason});
}

NodeView* Membership::BySession(uint64_t session) {
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return nullptr;
  return &nodes_.at(it->second);
}

void Membership::Deliver(const Changes& changes) {
  for (const Loss& loss : changes.broken) {
    spdlog::warn("node {}: session broke: {}", loss.node, loss.reason);
    listener_->OnSessionBroken(loss.node, loss.incarnation, loss.reason);
  }
  for (const Loss& loss : changes.lost) {
    spdlog::warn("node {}: lost: {}", loss.node, loss.reason);
    listener_->OnNodeLost(loss.node, loss.incarnation, loss.reason);
  }
}

void Membership::Close(const Changes& changes) {
  for (const Closing& closing : changes.closing) {
    listener_->CloseSession(closing.session, closing.why);
  }
}

absl::StatusOr<uint64_t> Membership::Join(const NodeHello& hello) {
  Changes changes;
  uint64_t session = 0;
  {
    absl::MutexLock order(&event_mu_);
    bool joined = false;
    {
      absl::MutexLock lock(&mu_);
      const int64_t now = clock_->MonotonicNanos();
      if (absl::Status status = CheckConflicts(hello, now); !status.ok()) return status;
      // Whoever is not living and stands in the way is dead: its address or name is in use by
      // another.
      for (auto& [name, node] : nodes_) {
        if (name != hello.name &&
            (node.hello.peer_address == hello.peer_address ||
             (!hello.data_address.empty() && node.hello.data_address == hello.data_address))) {
          Lose(node, absl::StrCat("its address is now that of node ", hello.name), changes);
        }
      }
      NodeView& node = nodes_[hello.name];
      const bool known = node.hello.incarnation == hello.incarnation;
      if (node.hello.incarnation != 0 && !known) {
        Lose(node, absl::StrFormat("node %s was started again", hello.name), changes);
      } else if (known && node.session != 0) {
        const std::string reason = absl::StrCat("node ", hello.name, " opened a new session");
        sessions_.erase(node.session);
        changes.closing.push_back({node.session, absl::AbortedError(reason)});
        changes.broken.push_back({hello.name, hello.incarnation, reason});
      }
      joined = !known || node.state == NodeState::kLost;
      session = next_session_++;
      node.hello = hello;
      node.state = NodeState::kAlive;
      node.session = session;
      node.last_heard_ns = now;
      sessions_[session] = hello.name;
    }
    Deliver(changes);
    if (joined) listener_->OnNodeJoined(hello);
  }
  Close(changes);
  return session;
}

absl::Status Membership::Heard(uint64_t session) {
  absl::MutexLock lock(&mu_);
  NodeView* node = BySession(session);
  if (node == nullptr) return absl::NotFoundError("the session has ended; send Hello in a new one");
  node->last_heard_ns = clock_->MonotonicNanos();
  return absl::OkStatus();
}

absl::Status Membership::Heartbeat(uint64_t session, int64_t clock_offset_ns) {
  absl::MutexLock lock(&mu_);
  NodeView* node = BySession(session);
  if (node == nullptr) return absl::NotFoundError("the session has ended; send Hello in a new one");
  node->last_heard_ns = clock_->MonotonicNanos();
  node->clock_offset_ns = clock_offset_ns;
  return absl::OkStatus();
}

void Membership::Leave(uint64_t session, const std::string& reason) {
  Changes changes;
  {
    absl::MutexLock order(&event_mu_);
    {
      absl::MutexLock lock(&mu_);
      NodeView* node = BySession(session);
      if (node == nullptr) return;
      Lose(*node, absl::StrCat("said goodbye: ", reason.empty() ? "no reason given" : reason),
           changes);
      for (Closing& closing : changes.closing) closing.why = absl::OkStatus();
    }
    Deliver(changes);
  }
  Close(changes);
}

void Membership::Disconnect(uint64_t session, const std::string& reason) {
  absl::MutexLock order(&event_mu_);
  Changes changes;
  {
    absl::MutexLock lock(&mu_);
    NodeView* node = BySession(session);
    if (node == nullptr) return;
    sessions_.erase(session);
    node->session = 0;
    node->state = NodeState::kSuspect;
    changes.broken.push_back({node->hello.name, node->hello.incarnation, reason});
  }
  Deliver(changes);
}

void Membership::DropOldestLost() {
  std::vector<std::pair<int64_t, std::string>> lost;
  for (const auto& [name, node] : nodes_) {
    if (node.state == NodeState::kLost) lost.emplace_back(node.last_heard_ns, name);
  }
  if (lost.size() <= kMaxLostNodes) return;
  std::sort(lost.begin(), lost.end());
  for (size_t i = 0; i + kMaxLostNodes < lost.size(); ++i) nodes_.erase(lost[i].second);
}

void Membership::Tick() {
  Changes changes;
  {
    absl::MutexLock order(&event_mu_);
    {
      absl::MutexLock lock(&mu_);
      const int64_t now = clock_->MonotonicNanos();
      const bool stalled = now - last_tick_ns_ > tick_ns_ + lease_ns_ / 4;
      if (stalled) {
        spdlog::warn("the coordinator stood still for {} ms; all leases are renewed",
                     (now - last_tick_ns_) / 1'000'000);
      }
      last_tick_ns_ = now;
      for (auto& [name, node] : nodes_) {
        if (node.state == NodeState::kLost) continue;
        if (stalled) node.last_heard_ns = now;
        if (now - node.last_heard_ns <= lease_ns_) continue;
        Lose(node,
             absl::StrFormat("nothing was heard of it for %d ms, and its lease is %d ms",
                             (now - node.last_heard_ns) / 1'000'000, lease_ns_ / 1'000'000),
             changes);
      }
      DropOldestLost();
    }
    Deliver(changes);
  }
  Close(changes);
}

std::vector<NodeView> Membership::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<NodeView> out;
  out.reserve(nodes_.size());
  for (const auto& [name, node] : nodes_) out.push_back(node);
  return out;
}

absl::StatusOr<NodeView> Membership::Find(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  auto it = nodes_.find(name);
  if (it == nodes_.end()) {
    return absl::NotFoundError(absl::StrCat("no node \"", name, "\" has ever joined"));
  }
  return it->second;
}

}  // namespace xfer
