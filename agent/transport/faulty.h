// A transport that wraps another and breaks it on purpose; for tests, and for nothing else.
#ifndef XFER_AGENT_TRANSPORT_FAULTY_H_
#define XFER_AGENT_TRANSPORT_FAULTY_H_

#include <cstdint>
#include <memory>

#include "agent/transport/transport.h"

namespace xfer {

// Which of the posted ranges suffer what; counted over all endpoints of the transport. 0: never.
struct FaultPlan {
  uint64_t drop_range = 0;      // the n-th range is completed as sent but never is
  uint64_t corrupt_range = 0;   // one bit of the n-th range differs at the destination
  uint64_t fail_range = 0;      // the n-th range completes with Unavailable
  uint64_t break_at_range = 0;  // the endpoint dies at the n-th range
  uint64_t lose_finish = 0;     // the n-th finish is never answered
  absl::Duration delay = absl::ZeroDuration();  // added to each completion
};
std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> inner,
                                               const FaultPlan& faults);

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_FAULTY_H_
