// Which agents there are, and whether they live.
#ifndef XFER_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_
#define XFER_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace xfer {

// What an agent says of itself when its session begins.
struct NodeHello {
  std::string name;
  uint64_t incarnation = 0;  // of the process; not zero
  std::string peer_address;  // HOST:PORT
  std::string data_address;  // HOST:PORT; "": it takes no data by tcp
  std::string version;
  int32_t nics = 1;
};

enum class NodeState : uint8_t {
  kAlive,    // session open, lease good
  kSuspect,  // session ended without a goodbye; lost when the lease has passed
  kLost,
};

struct NodeView {
  NodeHello hello;
  NodeState state = NodeState::kAlive;
  uint64_t session = 0;       // 0: none open
  int64_t last_heard_ns = 0;  // coordinator's monotonic clock
  int64_t clock_offset_ns = 0;
};

// Told of changes, in their order, one at a time. Must not call back into Membership's mutating
// functions; may be called on any thread.
class MembershipListener {
 public:
  virtual ~MembershipListener() = default;
  // A new incarnation, or one that had been lost, lives from now on.
  virtual void OnNodeJoined(const NodeHello& hello) = 0;
  // The session ended; the node may come back until its lease has passed.
  virtual void OnSessionBroken(const std::string& node, uint64_t incarnation,
                               const std::string& reason) = 0;
  // The incarnation is dead for the coordinator: its ranks are no longer registered.
  virtual void OnNodeLost(const std::string& node, uint64_t incarnation,
                          const std::string& reason) = 0;
  // The session must end. Called after the other notices of the same change.
  virtual void CloseSession(uint64_t session, const absl::Status& why) = 0;
};

// Thread-safe.
class Membership {
 public:
  struct Options {
    Clock* clock = Clock::Real();                   // borrowed
    absl::Duration lease = absl::Seconds(5);        // a node that is silent for longer is lost
    absl::Duration tick = absl::Milliseconds(500);  // how often Tick() is meant to be called
  };
  // `listener` is borrowed and outlives this.
  Membership(const Options& options, MembershipListener* listener);

  // Begins a session and returns its number (not zero, never used again). A new incarnation of a
  // known name replaces one whose session has ended or whose lease has passed; the same incarnation
  // replaces its own session. AlreadyExists: another living agent has the name, or one of the
  // addresses; names both.
  absl::StatusOr<uint64_t> Join(const NodeHello& hello) ABSL_LOCKS_EXCLUDED(event_mu_, mu_);

  // Renews the lease. NotFound where the session is no longer the node's.
  absl::Status Heard(uint64_t session) ABSL_LOCKS_EXCLUDED(mu_);
  // Renews the lease and keeps the agent's estimate of its clock's offset.
  absl::Status Heartbeat(uint64_t session, int64_t clock_offset_ns) ABSL_LOCKS_EXCLUDED(mu_);

  // The agent said goodbye: lost at once. No effect for a session that has been replaced.
  void Leave(uint64_t session, const std::string& reason) ABSL_LOCKS_EXCLUDED(event_mu_, mu_);
  // The stream ended. No effect for a session that has been replaced.
  void Disconnect(uint64_t session, const std::string& reason) ABSL_LOCKS_EXCLUDED(event_mu_, mu_);

  // Judges leases. If it comes much later than due, the coordinator itself stood still and heard
  // nobody for that reason: then every lease is renewed first.
  void Tick() ABSL_LOCKS_EXCLUDED(event_mu_, mu_);

  // All nodes ever seen (lost ones up to a bound), sorted by name.
  std::vector<NodeView> List() const ABSL_LOCKS_EXCLUDED(mu_);
  // NotFound names the node.
  absl::StatusOr<NodeView> Find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Loss {
    std::string node;
    uint64_t incarnation;
    std::string reason;
  };
  struct Closing {
    uint64_t session;
    absl::Status why;
  };
  // What a change leads to, in the order of delivery: breaks, losses, joins.
  struct Changes {
    std::vector<Loss> broken;
    std::vector<Loss> lost;
    std::vector<Closing> closing;
  };

  bool Living(const NodeView& node, int64_t now) const;
  absl::Status CheckConflicts(const NodeHello& hello, int64_t now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lose(NodeView& node, const std::string& reason, Changes& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  NodeView* BySession(uint64_t session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropOldestLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver(const Changes& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(event_mu_);
  void Close(const Changes& changes) ABSL_LOCKS_EXCLUDED(event_mu_, mu_);

  Clock* const clock_;
  const int64_t lease_ns_;
  const int64_t tick_ns_;
  MembershipListener* const listener_;

  // Held over a change and the delivery of its notices, so that they arrive in the order of the
  // changes.
  absl::Mutex event_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  std::map<std::string, NodeView> nodes_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::string> sessions_ ABSL_GUARDED_BY(mu_);  // open ones
  uint64_t next_session_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t last_tick_ns_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_MEMBERSHIP_MEMBERSHIP_H_
