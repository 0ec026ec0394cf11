#include "common/base/process.h"

#include <csignal>

#include "absl/synchronization/mutex.h"

namespace xfer {

void InitProcess() {
  signal(SIGPIPE, SIG_IGN);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace xfer
