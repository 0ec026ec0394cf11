#include "client/emulator/end_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

constexpr uint64_t kFailed = 1'000;

}  // namespace

EndEvent::EndEvent() : event_(eventfd(0, EFD_CLOEXEC)) {}

EndEvent& EndEvent::Get() {
  static EndEvent& event = *new EndEvent();
  return event;
}

void EndEvent::OnSignal(int number) {
  const int saved = errno;
  const uint64_t value = number;
  // Only an overflow could make it fail, and then it is readable already.
  [[maybe_unused]] const ssize_t written = write(Get().event_.get(), &value, sizeof(value));
  errno = saved;
}

void EndEvent::TakeSignals() {
  struct sigaction action = {};
  action.sa_handler = &EndEvent::OnSignal;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

void EndEvent::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (!failure_.ok()) return;
  failure_ = status;
  [[maybe_unused]] const ssize_t written = write(event_.get(), &kFailed, sizeof(kFailed));
}

absl::StatusOr<int> EndEvent::Wait() {
  uint64_t value = 0;
  ssize_t got = -1;
  do {
    got = read(event_.get(), &value, sizeof(value));
  } while (got < 0 && errno == EINTR);
  if (got != sizeof(value))
    return absl::InternalError(absl::StrCat("waiting for the end: ", strerror(errno)));
  absl::MutexLock lock(&mu_);
  if (value >= kFailed) return failure_;
  return static_cast<int>(value);
}

}  // namespace xfer
