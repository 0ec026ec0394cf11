// The digest of a transfer's stream as it lies in one side's memory.
#ifndef XFER_AGENT_EXEC_TRANSFER_DIGEST_H_
#define XFER_AGENT_EXEC_TRANSFER_DIGEST_H_

#include <cstddef>
#include <cstdint>

#include "common/plan/plan.h"

namespace xfer {

enum class TransferSide : uint8_t { kSource, kDestination };

// What stream bytes [begin, end) contribute to the digest of `transfer`, read from that side's
// region at `base`. `begin` must be a multiple of kDigestLeafBytes, `end` one too or the stream's
// end; the transfer must be without conversion and checked against the region. Source and
// destination that hold the same stream get the same number, however their runs are cut. Long runs
// are hashed where they lie, shorter ones are gathered leaf by leaf. Thread-safe.
uint64_t DigestOfTransfer(const Transfer& transfer, TransferSide side, const std::byte* base,
                          uint64_t begin, uint64_t end);

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_TRANSFER_DIGEST_H_
