// Where the receiver lets a transfer's bytes be written: as messages, and as the sender uses it.
#ifndef XFER_AGENT_TRANSPORT_VERBS_EXPOSURE_H_
#define XFER_AGENT_TRANSPORT_VERBS_EXPOSURE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/memory.h"
#include "common/plan/plan.h"
#include "xfer/v1/agent.pb.h"

namespace xfer::verbs {

// Another node's registered memory.
struct RemoteRegion {
  uint64_t base = 0;  // address there
  uint64_t bytes = 0;
  uint64_t piece_bytes = 0;
  std::vector<std::vector<uint32_t>> keys;  // of each rail, of each piece
};

// Where one transfer goes.
struct Destination {
  std::shared_ptr<const RemoteRegion> region;
  uint64_t base = 0;         // address that the copies' destination offsets count from
  std::vector<Copy> copies;  // source sides equal to the destination sides
};

// The receiver's side: the destination layout of a transfer, which may well convert.
void EncodeCopies(const Transfer& transfer, v1::VerbsTarget& target);
// `devices`: device of each of the connection's rails.
void EncodeRegion(const RegisteredMemory& memory, absl::Span<const size_t> devices,
                  v1::VerbsRegion& region);

// The sender's side. The reply came from another node: what does not fit together is refused as
// Internal.
absl::StatusOr<std::vector<std::shared_ptr<const RemoteRegion>>> DecodeRegions(
    const v1::VerbsExposeReply& reply, size_t rails);
absl::StatusOr<Destination> DecodeTarget(
    const v1::VerbsTarget& target, absl::Span<const std::shared_ptr<const RemoteRegion>> regions,
    uint64_t transfer_bytes);

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_EXPOSURE_H_
