// How a sync reaches the agents; the session service implements it, tests fake it.
#ifndef XFER_COORDINATOR_SYNC_GATEWAY_H_
#define XFER_COORDINATOR_SYNC_GATEWAY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// What the runner expects of an agent, beyond the comments in coordinator.proto:
// - Each step of a sync comes once, in the order of StepKind; CONNECT not at all where this session
// has
//   acknowledged the plan before. When an engine drops out before any byte has moved, the rest
//   starts again under another sync id, after RESUME and EndSync for the first.
// - RESUME may come while an earlier step is still running, which then has nobody to answer to: the
// agent
//   ends that step, or refuses RESUME and does its work at the EndSync that follows.
// - A step is answered before its deadline even if it failed; a session that breaks is no answer.
//
// Thread-safe. Nothing blocks, nothing calls back into the caller before it returns except a fake.
class AgentGateway {
 public:
  virtual ~AgentGateway() = default;
  // Queues a step on the node's open session and returns that session's number. Unavailable: no
  // session of this incarnation is open; the message names the node.
  virtual absl::StatusOr<uint64_t> SendStep(const std::string& node, uint64_t incarnation,
                                            const v1::Step& step) = 0;
  // No effect where no such session is open: an agent drops its syncs when its session ends.
  virtual void EndSync(const std::string& node, uint64_t incarnation, uint64_t sync_id,
                       const std::string& reason) = 0;
  virtual void ForgetPlan(const std::string& node, uint64_t plan_id) = 0;
  // Number of the node's open session; 0: none.
  virtual uint64_t SessionOf(const std::string& node, uint64_t incarnation) = 0;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SYNC_GATEWAY_H_
