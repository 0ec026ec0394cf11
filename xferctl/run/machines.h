// A run over several machines: how they find and leave each other.
#ifndef XFER_XFERCTL_RUN_MACHINES_H_
#define XFER_XFERCTL_RUN_MACHINES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/coordinator_client.h"
#include "xferctl/run/node_ranks.h"
#include "xferctl/run/options.h"

namespace xfer {

// Not the head: waits until the head has made the job. DeadlineExceeded where it does not come;
// FailedPrecondition where the head runs another job or another model.
absl::Status WaitForJob(CoordinatorClient& client, const RunOptions& options,
                        const CallCanceller& calls);

// Not the head: waits until the job is finished, and returns how.
absl::Status WaitForFinish(CoordinatorClient& client, const RunOptions& options);

// The head: says how the job ended and waits, 30 s at most, until all nodes but `here` have left.
// Uses a connection of its own, so that it works after an interruption, too.
absl::Status FinishRun(const std::string& coordinator, const RunOptions& options,
                       const std::vector<NodeRanks>& here, const absl::Status& outcome);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_MACHINES_H_
