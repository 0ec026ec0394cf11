// What the executor needs of the world outside: hooks of the ranks, the coordinator, other agents.
// Implemented in agent/service, replaced in tests. No gRPC here.
#ifndef XFER_AGENT_EXEC_INTERFACES_H_
#define XFER_AGENT_EXEC_INTERFACES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plan/plan.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// The numbers are those of proto xfer.v1.Hook; keep them equal.
enum class HookKind : uint8_t { kHold = 1, kRelease = 2, kPause = 3, kPostLoad = 4, kResume = 5 };

// "hold", "release", "pause", "post-load", "resume"
absl::string_view Name(HookKind hook);

struct HookOrder {
  uint64_t registration_id = 0;
  HookKind hook = HookKind::kHold;
  uint64_t sync_id = 0;
  int64_t version = 0;
  absl::Time deadline;   // told to the rank; who orders a hook watches the deadline itself
  absl::Status outcome;  // release, resume: how the sync ended for the rank
};

// Thread-safe.
class HookCaller {
 public:
  virtual ~HookCaller() = default;
  // Calls a hook of a rank's process; returns at once. `done` is called exactly once, perhaps
  // before this returns, from any thread, without locks held: OK from the rank, or for a hook that
  // it did not ask for; the rank's error; Unavailable when its session ends or it has none. It may
  // never be called for a rank that does not answer and does not end, until it ends.
  virtual void Call(const HookOrder& order, std::function<void(absl::Status)> done) = 0;
};

// Thread-safe.
class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;
  // Calls `part` for each part of this node's part of the plan, in order; an error of it ends the
  // call.
  virtual absl::Status FetchPlan(uint64_t plan_id, absl::Time deadline,
                                 absl::FunctionRef<absl::Status(const v1::PlanPart&)> part) = 0;
  virtual absl::Status ReportTimings(const std::vector<v1::TransferTimings>& batches,
                                     absl::Time deadline) = 0;
  // Queues an event for the coordinator; does not block.
  virtual void Send(v1::AgentEvent event) = 0;
  // To add to this host's monotonic clock to get the coordinator's.
  virtual int64_t ClockOffsetNanos() const = 0;
};

struct PeerIdentity {
  std::string node;
  uint64_t incarnation = 0;
  std::string data_address;
  std::vector<std::string> transports;  // that it can receive by
};

// Thread-safe.
class PeerIdentifier {
 public:
  virtual ~PeerIdentifier() = default;
  // Asks the agent at peer.peer_address() who it is. Errors name the peer.
  virtual absl::StatusOr<PeerIdentity> Identify(const v1::Peer& peer, absl::Time deadline) = 0;
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_INTERFACES_H_
