// Ctrl-C and its like as an event instead of the process's end.
#ifndef XFER_XFERCTL_SIGNAL_WATCH_H_
#define XFER_XFERCTL_SIGNAL_WATCH_H_

#include <csignal>
#include <functional>
#include <thread>

#include "common/base/unique_fd.h"

namespace xfer {

// While it lives, SIGINT, SIGTERM and SIGHUP call on_signal(number) on a thread of its own, once
// for each signal, one at a time. Make it before any other thread is started: threads inherit the
// mask that it sets for the calling thread, and a signal goes to any thread that does not block it.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void(int)> on_signal);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void Watch();

  const std::function<void(int)> on_signal_;
  sigset_t before_;
  UniqueFd signals_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace xfer

#endif  // XFER_XFERCTL_SIGNAL_WATCH_H_
