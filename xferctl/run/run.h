// `xferctl run` as a whole.
#ifndef XFER_XFERCTL_RUN_RUN_H_
#define XFER_XFERCTL_RUN_RUN_H_

#include "absl/status/status.h"
#include "xferctl/context.h"
#include "xferctl/run/options.h"

namespace xfer {

// Prepares, starts everything, syncs, tells, and stops everything. Whatever happens, when it
// returns (or this process is killed) none of what it started is left. Call from the main thread,
// before it has made others.
absl::Status Run(Context& context, const RunFlags& flags);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_RUN_H_
