// The plan: a graph of transfers, each a list of strided copies between two regions.
//
// Shared by every transport, by digests, conversions and fan-out. Nothing in a Copy knows of
// tensors; a Transfer keeps its tensor only so that an error can name it. How a transfer is cut
// into chunks is the executor's business.
#ifndef XFER_COMMON_PLAN_PLAN_H_
#define XFER_COMMON_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/layout/box.h"
#include "common/model/dtype.h"
#include "common/model/tensor_table.h"

namespace xfer {

enum class Role : uint8_t { kTrainer = 1, kRollout = 2 };

// Names one rank of a job: trainers by their world rank, rollout ranks by engine and rank within
// it.
struct RankId {
  Role role = Role::kTrainer;
  int32_t engine = 0;  // 0 for trainers
  int32_t rank = 0;

  friend bool operator==(const RankId&, const RankId&) = default;
  friend auto operator<=>(const RankId&, const RankId&) = default;
  // "trainer 3" or "engine 1 rank 0"
  std::string ToString() const;
};

// A run is repeated `count` times, `source_stride` and `destination_stride` bytes apart.
struct CopyLevel {
  uint64_t count = 1;
  int64_t source_stride = 0;
  int64_t destination_stride = 0;
  friend bool operator==(const CopyLevel&, const CopyLevel&) = default;
};

// `run` contiguous bytes at both offsets, repeated over `levels` (outermost first). In a transfer
// with a conversion, `run` and destination fields count destination bytes and source fields source
// bytes; a run's source length is run / destination element size * source element size.
struct Copy {
  uint64_t source_offset = 0;
  uint64_t destination_offset = 0;
  uint64_t run = 0;
  absl::InlinedVector<CopyLevel, 1> levels;

  uint64_t runs() const {
    uint64_t n = 1;
    for (const CopyLevel& level : levels) n *= level.count;
    return n;
  }
  // Destination bytes.
  uint64_t bytes() const { return run * runs(); }
  friend bool operator==(const Copy&, const Copy&) = default;
};

// Element-wise conversion on the way; none where the types are equal.
struct Conversion {
  DType from = DType::kBF16;
  DType to = DType::kBF16;
  bool none() const { return from == to; }
};

using TransferId = uint32_t;

// One box of one Hugging Face tensor, from one region of one rank to one region of another. It
// fails, is retried, timed and digested as one. Its *stream* is its destination bytes in row-major
// order of the box, which is the order of its copies.
struct Transfer {
  TransferId id = 0;     // index in Plan::transfers
  TensorId tensor = -1;  // for messages
  Box box;               // for messages
  int32_t source = 0;    // index in Plan::ranks
  int32_t source_region = 0;
  int32_t destination = 0;  // index in Plan::ranks
  int32_t destination_region = 0;
  std::vector<Copy> copies;
  uint64_t bytes = 0;  // of the stream
  Conversion conversion;
  absl::InlinedVector<TransferId, 1>
      waits_for;  // transfers that must have arrived before this may start
};

struct PlanRank {
  RankId id;
  std::string node;  // node name
  int32_t nic = 0;   // index of the NIC nearest to the rank within its node
};

// What the busiest NIC carries, against the least it could.
struct PlanStats {
  uint64_t bytes = 0;              // all transfers
  uint64_t wire_bytes = 0;         // transfers between nodes
  uint64_t busiest_out_bytes = 0;  // most bytes leaving one NIC
  uint64_t busiest_in_bytes = 0;   // most bytes entering one NIC
  uint64_t lower_bound_bytes = 0;  // see LowerBound() in planner.h
  // max(busiest_in, busiest_out) / lower_bound; 1 where nothing crosses a wire.
  double ratio() const;
};

struct Plan {
  uint64_t generation = 0;  // registration generation that it was made for
  std::vector<PlanRank> ranks;
  std::vector<Transfer> transfers;
  PlanStats stats;
};

// Calls fn(source_offset, destination_offset, bytes) for each contiguous run of stream bytes
// [begin, end) of a transfer without conversion, in stream order; runs that continue each other on
// both sides are given as one. Requires begin <= end <= transfer.bytes. Finding `begin` costs
// O(copies), never O(runs).
void ForEachRun(const Transfer& transfer, uint64_t begin, uint64_t end,
                absl::FunctionRef<void(uint64_t, uint64_t, uint64_t)> fn);

// Checks a transfer that came from outside against the sizes of its two regions: every run inside
// both, no arithmetic that wraps, copies' bytes equal to `bytes`, nothing empty. Runs in O(copies).
absl::Status CheckTransfer(const Transfer& transfer, uint64_t source_region_bytes,
                           uint64_t destination_region_bytes);

}  // namespace xfer

#endif  // XFER_COMMON_PLAN_PLAN_H_
