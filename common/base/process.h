// What every xfer program does first.
#ifndef XFER_COMMON_BASE_PROCESS_H_
#define XFER_COMMON_BASE_PROCESS_H_

namespace xfer {

// Call once, first thing in main. Ignores SIGPIPE (a peer that goes is an error code, not the end), and turns
// off Abseil's lock-order graph: Debian builds Abseil with its debug checks, which take a global lock for each
// absl::Mutex::Lock(). The tests leave it on.
void InitProcess();

}  // namespace xfer

#endif  // XFER_COMMON_BASE_PROCESS_H_
