// A plan carried out by broadcasts: what goes in which bucket, from which root, to whom.
#ifndef XFER_COMMON_PLAN_BROADCAST_H_
#define XFER_COMMON_PLAN_BROADCAST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/tensor_table.h"
#include "common/plan/plan.h"

namespace xfer {

// Streams start at multiples of this within a bucket; what conversions and vector copies like.
inline constexpr uint64_t kBucketAlignment = 64;  // bytes

// Nodes that carry out broadcasts together: those that pack for one pipeline stage, and all that
// receive. One member a node, however many ranks it has.
struct BroadcastCommunicator {
  int32_t stage = 0;
  std::vector<std::string> members;  // node names, sorted
};

// A concatenation of streams, broadcast as one.
struct BroadcastBucket {
  uint32_t communicator = 0;  // index into communicators
  uint32_t root = 0;          // index into its members: the node that packs
  uint64_t bytes = 0;         // of the streams, with their alignment
  uint32_t streams = 0;
};

// Where a transfer's stream is found. Transfers with equal streams share one place.
struct BroadcastSlot {
  uint32_t bucket = 0;  // index into buckets
  uint32_t stream = 0;  // index within the bucket
  uint64_t offset = 0;  // bytes within the bucket
  bool packed = false;  // this transfer's source fills the stream; so for one transfer of each
};

struct BroadcastPlan {
  std::vector<BroadcastCommunicator> communicators;  // by stage
  // In the order in which all members carry them out, so that none waits for another in a circle.
  std::vector<BroadcastBucket> buckets;
  std::vector<BroadcastSlot> slots;  // by transfer id
  uint64_t broadcast_bytes = 0;      // of all buckets, each once
  uint64_t delivered_bytes = 0;      // of all buckets, times the members that receive them
  uint64_t kept_bytes = 0;           // of all transfers: what receivers unpack
};

// Arranges the transfers of `plan` in buckets of at most `bucket_bytes`. Transfers of one box of
// one tensor in one type have the same stream whichever replica they were planned from; it is
// packed once, by that one of their sources whose node packs the fewest bytes. Streams of tensors
// of one module ("...self_attn.", "...experts.7."), which are where fused parts and their scales
// are, stay in one bucket for each root; a module that is larger than `bucket_bytes` has a bucket
// of its own size. The roots of a stage take turns.
//
// `stages` has the pipeline stage of each source rank, by index in plan.ranks. InvalidArgument: a
// plan whose transfers wait for each other, no bucket size, a rank without a stage.
absl::StatusOr<BroadcastPlan> PlanBroadcast(const Plan& plan, const TensorTable& tensors,
                                            absl::Span<const int32_t> stages,
                                            uint64_t bucket_bytes);

}  // namespace xfer

#endif  // XFER_COMMON_PLAN_BROADCAST_H_
