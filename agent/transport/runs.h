// What every transport needs of a transfer's runs: iovecs, packing, unpacking, copying.
//
// All functions are thread-safe and take stream bytes [begin, end) of a transfer whose runs were
// checked against the memory given (CheckTransfer); they check nothing themselves.
#ifndef XFER_AGENT_TRANSPORT_RUNS_H_
#define XFER_AGENT_TRANSPORT_RUNS_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "agent/transport/transport.h"
#include "common/plan/plan.h"

namespace xfer {

// Bytes that are moved and reported at once: they stay in a core's second-level cache until
// digested.
inline constexpr uint64_t kBlockBytes = 256 * 1024;

// Names a transfer of a sync where several are in flight.
struct TransferKey {
  SyncKey sync;
  TransferId transfer = 0;

  friend bool operator==(const TransferKey&, const TransferKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const TransferKey& key) {
    return H::combine(std::move(h), key.sync.sync_id, key.sync.secret, key.transfer);
  }
};

enum class Side { kSource, kDestination };

// InvalidArgument unless the range is aligned, inside its transfer, and its transfer's runs are
// inside the source memory and without conversion (a converted transfer is staged by the executor
// first).
absl::Status CheckRange(const SendRange& range);

// Appends iovecs for one side's runs to `out` until it holds `max_iovecs`; runs that continue each
// other on that side become one. Returns the stream offset up to which the iovecs reach, > begin if
// there was room.
uint64_t GatherRuns(const Transfer& transfer, Side side, std::byte* base, uint64_t begin,
                    uint64_t end, size_t max_iovecs, std::vector<iovec>& out);

// True where the runs of one side near `begin` are so short that copying them through a buffer is
// cheaper than an iovec each.
bool RunsAreShort(const Transfer& transfer, Side side, uint64_t begin, uint64_t end);

// From the source's runs to contiguous `out`, end - begin bytes.
void PackRuns(const Transfer& transfer, const std::byte* source, uint64_t begin, uint64_t end,
              std::byte* out);
// From contiguous `in` to the destination's runs.
void UnpackRuns(const Transfer& transfer, std::byte* destination, uint64_t begin, uint64_t end,
                const std::byte* in);
// From runs to runs.
void CopyRuns(const Transfer& transfer, const std::byte* source, std::byte* destination,
              uint64_t begin, uint64_t end);

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_RUNS_H_
