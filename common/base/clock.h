// The one seam to time. Whatever judges leases or deadlines takes a Clock, so that tests can move
// it.
#ifndef XFER_COMMON_BASE_CLOCK_H_
#define XFER_COMMON_BASE_CLOCK_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace xfer {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds on a monotonic axis whose origin is arbitrary but shared by the processes of a
  // host.
  virtual int64_t MonotonicNanos() const = 0;
  // Wall-clock time, for people and records only; never for deadlines.
  virtual absl::Time Wall() const = 0;

  // CLOCK_MONOTONIC and CLOCK_REALTIME; lives for ever.
  static Clock* Real();
};

// A clock that stands still until told to move. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t monotonic_nanos = 0) : nanos_(monotonic_nanos) {}
  int64_t MonotonicNanos() const override {
    absl::MutexLock lock(&mu_);
    return nanos_;
  }
  absl::Time Wall() const override { return absl::FromUnixNanos(MonotonicNanos()); }
  void Advance(absl::Duration d) {
    absl::MutexLock lock(&mu_);
    nanos_ += absl::ToInt64Nanoseconds(d);
  }

 private:
  mutable absl::Mutex mu_;
  int64_t nanos_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_COMMON_BASE_CLOCK_H_
