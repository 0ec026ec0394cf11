#include "agent/service/clock_offset.h"

#include <algorithm>

namespace xfer {

void ClockOffset::Add(int64_t sent_ns, int64_t there_received_ns, int64_t there_sent_ns,
                      int64_t received_ns) {
  const int64_t round_trip = (received_ns - sent_ns) - (there_sent_ns - there_received_ns);
  if (received_ns < sent_ns || there_sent_ns < there_received_ns || round_trip < 0) return;
  // The sum of two differences may be twice what fits; each half of it fits.
  const int64_t offset = (there_received_ns - sent_ns) / 2 + (there_sent_ns - received_ns) / 2;
  absl::MutexLock lock(&mu_);
  samples_.push_back({offset, std::max<int64_t>(round_trip, 1)});
  if (samples_.size() > kSamples) samples_.pop_front();
  best_ = *std::min_element(samples_.begin(), samples_.end(), [](const Sample& a, const Sample& b) {
    return a.round_trip_ns < b.round_trip_ns;
  });
}

void ClockOffset::Reset() {
  absl::MutexLock lock(&mu_);
  samples_.clear();
}

int64_t ClockOffset::offset_ns() const {
  absl::MutexLock lock(&mu_);
  return best_.offset_ns;
}

int64_t ClockOffset::round_trip_ns() const {
  absl::MutexLock lock(&mu_);
  return best_.round_trip_ns;
}

}  // namespace xfer
