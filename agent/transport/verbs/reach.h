// Whether another agent is reached by RDMA: asked and tried, without any memory being written.
#ifndef XFER_AGENT_TRANSPORT_VERBS_REACH_H_
#define XFER_AGENT_TRANSPORT_VERBS_REACH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace xfer::verbs {

struct PeerReach {
  std::string node;                     // the peer's name
  std::vector<std::string> transports;  // by which it receives
  struct Rail {
    std::string name;     // ports, GIDs and MTU
    absl::Status status;  // OK: an empty write was acknowledged by the other end's device
    absl::Duration time;  // that it took
  };
  std::vector<Rail> rails;  // empty where the peer does not receive by verbs
};

// `address`: HOST:PORT of the peer agent's gRPC service. Connects queue pairs from the ports `nics`
// here (empty: all that are active; as an agent's option of that name) as a sync would, sends one
// empty write over each rail, and closes them again. Errors say which step failed and what to
// check.
absl::StatusOr<PeerReach> ProbePeer(const std::string& address,
                                    const std::vector<std::string>& nics, absl::Time deadline);

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_REACH_H_
