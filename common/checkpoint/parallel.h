// Work that falls into independent items, spread over threads.
#ifndef XFER_COMMON_CHECKPOINT_PARALLEL_H_
#define XFER_COMMON_CHECKPOINT_PARALLEL_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace xfer {

// Calls fn(i) for each i in [0, n), from up to `threads` threads (at least one) at a time, lower
// ones first. Returns when no call is running any more: OK, or the first error seen, after which no
// further item is begun.
absl::Status ParallelFor(size_t n, int threads, absl::FunctionRef<absl::Status(size_t)> fn);

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_PARALLEL_H_
