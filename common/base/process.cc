#include "common/base/process.h"

#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace xfer {

void InitProcess() {
  signal(SIGPIPE, SIG_IGN);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

EndSignals::EndSignals() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGTERM);
  sigaddset(&set_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

int EndSignals::Wait() const {
  int number = 0;
  sigwait(&set_, &number);
  return number;
}

void TellReady(int fd, absl::string_view line) {
  if (fd < 0) return;
  const std::string text = absl::StrCat(line, "\n");
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      spdlog::warn("--ready-fd {}: cannot be written to: {}", fd, strerror(errno));
      break;
    }
    done += static_cast<size_t>(n);
  }
  close(fd);
}

}  // namespace xfer
