// Transfers that convert elements on the way.
//
// Transports and digests move bytes and know no element types. So the sender converts chunk by
// chunk into staging memory that holds the stream itself, and what goes over the wire is a transfer
// whose source is that stream.
#ifndef XFER_AGENT_EXEC_CONVERSION_H_
#define XFER_AGENT_EXEC_CONVERSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/plan/plan.h"

namespace xfer {

// The two halves of a converting transfer, both without conversion. Immutable.
struct ConvertedTransfer {
  Transfer wire;    // the converted stream from offset 0, to the planned destinations
  Transfer gather;  // the planned sources, in source bytes, to a stream from offset 0
};

// Unimplemented names the types that there is no conversion between. The transfer must have passed
// CheckTransfer().
absl::StatusOr<std::unique_ptr<ConvertedTransfer>> SplitConversion(const Transfer& transfer);

// Converts stream bytes [begin, end) of `transfer` from its source region at `source` into `out`,
// which has end - begin bytes. `begin` must be a multiple of kDigestLeafBytes.
void ConvertRange(const Transfer& transfer, const ConvertedTransfer& converted,
                  const std::byte* source, uint64_t begin, uint64_t end, absl::Span<std::byte> out);

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_CONVERSION_H_
