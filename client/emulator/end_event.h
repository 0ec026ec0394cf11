// What ends an emulator process: a signal, or a rank that cannot go on.
#ifndef XFER_CLIENT_EMULATOR_END_EVENT_H_
#define XFER_CLIENT_EMULATOR_END_EVENT_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/unique_fd.h"

namespace xfer {

// One a process, because signals are. Thread-safe.
class EndEvent {
 public:
  static EndEvent& Get();

  // From now on SIGTERM and SIGINT make Wait() return; the second one ends the process.
  void TakeSignals();
  // Makes Wait() fail; the first status stands.
  void Fail(const absl::Status& status);
  // The signal's number, or the status given to Fail(). Waits for as long as neither comes.
  absl::StatusOr<int> Wait();

 private:
  EndEvent();
  static void OnSignal(int number);

  UniqueFd event_;  // an eventfd that carries signal numbers; kFailed is larger than all
  absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_CLIENT_EMULATOR_END_EVENT_H_
