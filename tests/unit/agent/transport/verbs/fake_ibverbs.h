// libibverbs in this process, without a device: for the sanitizers and for faults that no network
// makes on demand.
//
// fake_ibverbs.cc defines the functions of libibverbs that the transport calls, so a test that is
// linked with it never reaches the real ones. There are five devices of one port each, named as in
// the virtual machine's networks: rxe0, and rxe0a, rxe0b, rxe1a, rxe1b. One thread carries the
// requests out, in order for each queue pair, with the checks that a device makes: states, keys,
// bounds, receive requests. Timing is not that of any device.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_VERBS_FAKE_IBVERBS_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_VERBS_FAKE_IBVERBS_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <limits>
#include <string>

namespace xfer::fake_ibverbs {

inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// All are thread-safe.
// Stops after so many more requests of all queue pairs, until Go().
void StopAfter(uint64_t requests);
void Go();
// Waits (10 s at most) until it has stopped. False: it did not.
bool AwaitStopped();
// The n-th request from now on that a device sends, counted from 1, fails with `status`; its queue
// pair then is in the error state.
void FailRequest(const std::string& device, uint64_t n, ibv_wc_status status);
// With or without the event that tells of it. Requests over a port that is down run out of retries.
void SetPort(const std::string& device, bool up, bool tell);
// Requests carried out with success, by device.
uint64_t Requests(const std::string& device);
// Requests are only counted and completed at once, by the thread that posts them: for benchmarks.
void SetDiscard(bool discard);
// Back to the start: ports up, nothing held or failing.
void Reset();
// Objects (of any kind) that were created and not destroyed.
int LiveObjects();

}  // namespace xfer::fake_ibverbs

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_VERBS_FAKE_IBVERBS_H_
