#include "common/base/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace xfer {
namespace {

class RealClock final : public Clock {
 public:
  int64_t MonotonicNanos() const override {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
  absl::Time Wall() const override { return absl::Now(); }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace xfer
