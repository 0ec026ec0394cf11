// The coordinator's clock as this agent knows it.
#ifndef XFER_AGENT_SERVICE_CLOCK_OFFSET_H_
#define XFER_AGENT_SERVICE_CLOCK_OFFSET_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace xfer {

// Estimates the offset as NTP does: of the latest exchanges the one with the shortest round trip is
// believed, for its error is at most half of that. Thread-safe.
class ClockOffset {
 public:
  // An exchange; own monotonic clock for `sent` and `received`, the coordinator's for the other
  // two.
  void Add(int64_t sent_ns, int64_t there_received_ns, int64_t there_sent_ns, int64_t received_ns);
  // Forgets the exchanges (another coordinator), keeps the estimate until there are new ones.
  void Reset();

  int64_t offset_ns() const;      // coordinator's clock minus own; 0: no estimate yet
  int64_t round_trip_ns() const;  // of the exchange that is believed; 0: no estimate yet

 private:
  struct Sample {
    int64_t offset_ns;
    int64_t round_trip_ns;
  };
  static constexpr size_t kSamples = 16;

  mutable absl::Mutex mu_;
  std::deque<Sample> samples_ ABSL_GUARDED_BY(mu_);
  Sample best_ ABSL_GUARDED_BY(mu_) = {0, 0};
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_CLOCK_OFFSET_H_
