// What every xfer program does at its start and its end.
#ifndef XFER_COMMON_BASE_PROCESS_H_
#define XFER_COMMON_BASE_PROCESS_H_

#include <csignal>

#include "absl/strings/string_view.h"

namespace xfer {

// Call once, first thing in main. Ignores SIGPIPE (a peer that goes is an error code, not the end),
// and turns off Abseil's lock-order graph: Debian builds Abseil with its debug checks, which take a
// global lock for each absl::Mutex::Lock(). The tests leave it on.
void InitProcess();

// SIGTERM and SIGINT as something to wait for. Make it before the first thread starts: they are
// blocked in the threads that start later, and for good.
class EndSignals {
 public:
  EndSignals();
  // Waits, without limit, for one of them; returns its number.
  int Wait() const;

 private:
  sigset_t set_;
};

// Tells whoever started this process (and gave it descriptor `fd`, say by --ready-fd) that it is
// ready: writes `line` and a newline, and closes `fd`. Does nothing where `fd` is negative; that
// nobody reads is logged and is no error.
void TellReady(int fd, absl::string_view line);

}  // namespace xfer

#endif  // XFER_COMMON_BASE_PROCESS_H_
