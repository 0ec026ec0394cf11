// How a sync went, for people.
#ifndef XFER_XFERCTL_REPORT_H_
#define XFER_XFERCTL_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "xfer/v1/coordinator.pb.h"
#include "xferctl/table.h"

namespace xfer {

// A row a phase and one for the whole: ms, bytes, GB/s, slowest rank.
Table PhaseTable(const v1::Sync& sync);

// A line for each failed engine: its cause, and each failed transfer with nodes, ranks, tensor and
// cause.
std::vector<std::string> FailureLines(const v1::Sync& sync);

// OK where every engine committed; else one line that names sync, version and the first failure.
absl::Status SyncStatus(const v1::Sync& sync);

// "transfer  [####....]  40%  1.2 GB of 3.0 GB"
std::string SyncProgress(const v1::Sync& sync);

}  // namespace xfer

#endif  // XFER_XFERCTL_REPORT_H_
