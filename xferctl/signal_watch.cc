#include "xferctl/signal_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace xfer {

SignalWatch::SignalWatch(std::function<void(int)> on_signal) : on_signal_(std::move(on_signal)) {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread(&SignalWatch::Watch, this);
}

SignalWatch::~SignalWatch() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void SignalWatch::Watch() {
  while (true) {
    std::array<pollfd, 2> fds = {pollfd{signals_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info = {};
    if (read(signals_.get(), &info, sizeof(info)) == sizeof(info))
      on_signal_(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace xfer
