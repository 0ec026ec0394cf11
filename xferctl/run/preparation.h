// Before a run: the files it starts from, and whether memory and disk suffice.
#ifndef XFER_XFERCTL_RUN_PREPARATION_H_
#define XFER_XFERCTL_RUN_PREPARATION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "xferctl/context.h"
#include "xferctl/run/node_ranks.h"
#include "xferctl/run/options.h"

namespace xfer {

// Leaves a directory alone that is prepared for this model, whatever its weights come from; else
// writes one with made-up weights, and says so.
absl::Status PrepareForRun(const Context& context, const RunOptions& options);

// FailedPrecondition where the ranks and agents of `here` need more memory than there is, or their
// dump more than the disk of --dump-dir has; names both numbers and what helps.
absl::Status CheckRoom(const RunOptions& options, const std::vector<NodeRanks>& here);
// The rule behind it, `rank_bytes` being the ranks' shared memory and what else grows with the
// model.
absl::Status CheckMemory(const RunOptions& options, uint64_t rank_bytes, size_t nodes,
                         uint64_t available);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_PREPARATION_H_
