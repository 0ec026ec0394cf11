// The stages of BuildPlan() and what they hand on. Private to common/plan.
//
//   ResolveRanks -> SourceIndex::Build -> BuildUnits -> Choose -> Lower, then FillStats.
//
// Counts reach millions (pieces of all ranks), so that stages share flat arrays of small records
// that point into the borrowed manifests.
#ifndef XFER_COMMON_PLAN_PLANNER_INTERNAL_H_
#define XFER_COMMON_PLAN_PLANNER_INTERNAL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/plan/planner.h"

namespace xfer::plan_internal {

// --- Boxes
// -------------------------------------------------------------------------------------------

// Dimension 0 as an interval; a scalar (no dimensions) is one row.
inline int64_t FirstRow(const Box& box) { return box.start.empty() ? 0 : box.start[0]; }
inline int64_t Rows(const Box& box) { return box.extent.empty() ? 1 : box.extent[0]; }
inline int64_t EndRow(const Box& box) { return FirstRow(box) + Rows(box); }

// Elements that two boxes of equal rank share.
inline int64_t SharedElements(const Box& a, const Box& b) {
  int64_t n = 1;
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t low = std::max(a.start[d], b.start[d]);
    const int64_t high = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]);
    if (high <= low) return 0;
    n *= high - low;
  }
  return n;
}

// The common part; the caller knows that it is not empty.
Box SharedBox(const Box& a, const Box& b);
// -1, 0, 1: by start, then extent, outermost dimension first.
int CompareBoxes(const Box& a, const Box& b);
// Boxes that stack along dimension 0 sort next to each other: by the inner dimensions, then by row.
int CompareColumns(const Box& a, const Box& b);
// True where `b` continues `a` along dimension 0 and has its other dimensions.
bool Stacks(const Box& a, const Box& b);
// True where no two boxes meet. `boxes` must be sorted by first row.
bool Disjoint(absl::Span<const Box* const> boxes);
// Disjoint boxes that hold the same elements. Sorts `boxes` and drops its duplicates.
std::vector<Box> Union(std::vector<const Box*>& boxes);
// Takes the elements of `box` out of a list of disjoint boxes.
void Remove(const Box& box, std::vector<Box>& from);

// --- Ranks
// -------------------------------------------------------------------------------------------

// The ranks of a plan: sources first, then destinations, each sorted by id.
struct Ranks {
  std::vector<PlanRank> ranks;
  std::vector<const Manifest*> manifests;  // by rank
  int32_t sources = 0;
  std::vector<int32_t> node;          // by rank: index of its node; nodes are sorted by name
  std::vector<int32_t> nic;           // by rank: index of its NIC among all NICs of all nodes
  std::vector<int32_t> nics_of_node;  // by node: at least 1
  int32_t nics = 0;                   // of all nodes

  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
  int32_t nodes() const { return static_cast<int32_t>(nics_of_node.size()); }
};
// InvalidArgument: no tensors or manifest given, a rank twice, a negative NIC index.
absl::StatusOr<Ranks> ResolveRanks(const PlanInput& input);

// Checks every piece against its tensor and region.
absl::Status CheckPieces(const TensorTable& tensors, const PlanRank& rank,
                         const Manifest& manifest);
// Refuses pieces of one rank that overlap in memory, each other or themselves.
absl::Status CheckApart(const TensorTable& tensors, const PlanRank& rank, const Manifest& manifest);

// --- Sources
// -----------------------------------------------------------------------------------------

// Who holds a box: a rank, where, and as what type. No padding, so that it can be hashed as bytes.
struct Holder {
  int32_t rank = 0;  // index in Ranks
  int32_t region = 0;
  int32_t dtype = 0;

  DType type() const { return static_cast<DType>(dtype); }
  friend bool operator==(const Holder&, const Holder&) = default;
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

// Sorted lists of holders, each stored once. A model has few of them (one per shard of each grid).
class HolderSets {
 public:
  // `holders` must be sorted.
  uint32_t Intern(absl::Span<const Holder> holders);
  absl::Span<const Holder> operator[](uint32_t set) const {
    return absl::MakeSpan(flat_.data() + begin_[set], begin_[set + 1] - begin_[set]);
  }
  uint32_t size() const { return static_cast<uint32_t>(begin_.size() - 1); }

  // The holders of `set` from which a destination of type `to` can be filled: those of equal type,
  // else those of a type that converts. -1 where there is none. Remembers its answers.
  int32_t Usable(uint32_t set, DType to);

 private:
  std::vector<Holder> flat_;
  std::vector<size_t> begin_ = {0};
  absl::flat_hash_map<std::string, uint32_t> ids_;
  absl::flat_hash_map<uint64_t, int32_t> usable_;
};

// True where xfer converts element by element on the way.
bool Convertible(DType from, DType to);

// A box that one set of ranks holds. Boxes of one tensor are disjoint.
struct SourceBox {
  Box box;
  uint32_t holders = 0;      // in HolderSets
  uint32_t first_piece = 0;  // in SourceIndex: one piece a holder, in the order of the set
};

// The source pieces by tensor. Sources that hold partly overlapping boxes are cut until any two
// boxes are equal (and become one, with several holders) or disjoint.
class SourceIndex {
 public:
  // The pieces must have passed CheckPieces().
  static SourceIndex Build(const TensorTable& tensors, const Ranks& ranks);

  // Sorted by first row.
  absl::Span<const SourceBox> Boxes(TensorId tensor) const {
    return absl::MakeSpan(boxes_.data() + begin_[tensor], begin_[tensor + 1] - begin_[tensor]);
  }
  const SourceBox& box(uint32_t index) const { return boxes_[index]; }
  uint32_t IndexOf(const SourceBox& box) const {
    return static_cast<uint32_t>(&box - boxes_.data());
  }
  // The piece by which `holder` has `box`.
  const Piece& PieceOf(const SourceBox& box, const Holder& holder) const;
  // Calls fn(const SourceBox&) for each box of the tensor that shares rows with [first, end).
  template <typename Fn>
  void ForRows(TensorId tensor, int64_t first, int64_t end, Fn fn) const {
    const uint32_t base = begin_[tensor];
    // Boxes are sorted by first row; reach_ is the furthest end row so far, so that the walk back
    // can stop.
    uint32_t high = static_cast<uint32_t>(
        std::partition_point(boxes_.begin() + base, boxes_.begin() + begin_[tensor + 1],
                             [&](const SourceBox& b) { return FirstRow(b.box) < end; }) -
        boxes_.begin());
    uint32_t low = high;
    while (low > base && reach_[low - 1] > first) --low;
    for (uint32_t i = low; i < high; ++i) {
      if (EndRow(boxes_[i].box) > first) fn(boxes_[i]);
    }
  }

  HolderSets& sets() { return sets_; }
  const HolderSets& sets() const { return sets_; }

 private:
  struct Held;
  void AddTensor(absl::Span<Held> held);
  void AddBox(const Box& box, std::vector<Held>& held);

  std::vector<SourceBox> boxes_;
  std::vector<int64_t> reach_;        // by box
  std::vector<uint32_t> begin_;       // by tensor, one more at the end
  std::vector<const Piece*> pieces_;  // of the holders of all boxes
  HolderSets sets_;
};

// --- Units
// -------------------------------------------------------------------------------------------

// The common part of a destination piece and a source box.
struct Segment {
  uint32_t piece = 0;   // in the destination's manifest
  uint32_t source = 0;  // in SourceIndex
};

// What is given to one source, or split by rows among several: segments that stack along dimension
// 0, of one tensor, for one region of one destination, with equal holders.
struct Unit {
  uint64_t bytes = 0;  // destination bytes
  int64_t rows = 0;
  uint32_t first_segment = 0;
  uint32_t segments = 0;
  uint32_t holders = 0;  // in HolderSets, only usable ones
  int32_t destination = 0;
};

struct Units {
  std::vector<Unit> units;  // by destination, tensor and CompareColumns
  std::vector<Segment> segments;
};
// Proves the coverage. Fails as BuildPlan() says.
absl::StatusOr<Units> BuildUnits(const TensorTable& tensors, const Ranks& ranks,
                                 SourceIndex& index);

// --- Choice
// ------------------------------------------------------------------------------------------

// Bytes to be sent or received by any of some NICs.
struct DealItem {
  uint64_t bytes = 0;
  int64_t rows = 1;  // in as many equal parts it may be split
  uint32_t menu = 0;
};
// NICs to choose from; distinct.
struct Menu {
  std::vector<int32_t> nics;
  std::vector<int32_t> reserve;  // taken only where `nics` would carry more than the floor
};
struct Dealt {
  uint32_t item = 0;
  int32_t nic = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};
// Deals items to the NICs of their menus so that the busiest NIC is as light as can be; few are
// split. `load` has the bytes that each NIC carries beforehand and grows by what is dealt. `floor`:
// bytes that some NIC carries whatever is done here, so that there is no need to stay below it.
// Results by item, then row; every item is covered. Deterministic.
std::vector<Dealt> Deal(absl::Span<const DealItem> items, absl::Span<const Menu> menus,
                        double floor, std::vector<double>& load);

// Indices of `count` things, largest first, equal ones in their order.
std::vector<uint32_t> LargestFirst(size_t count, absl::FunctionRef<uint64_t(uint32_t)> bytes_of);

// Numbers from 0 on for those of `which` units that have equal boxes, cut at equal places, and one
// type, so that one can be filled from the other; by first appearance.
std::vector<uint32_t> GroupUnits(const Ranks& ranks, const SourceIndex& index, const Units& units,
                                 absl::Span<const uint32_t> which);

// Rows [first_row, first_row + rows) of a unit come from one holder, or from another unit of its
// group.
struct Part {
  uint32_t unit = 0;
  uint32_t holder = 0;  // in the unit's set; without meaning where there is a peer
  int32_t peer = -1;    // the unit that passes them on; -1: none
  int64_t first_row = 0;
  int64_t rows = 0;
};
// Parts by unit, then row; every unit is covered. Deterministic.
std::vector<Part> Choose(const Ranks& ranks, const SourceIndex& index, const Units& units,
                         FanOut fan_out);

// --- Lowering
// ----------------------------------------------------------------------------------------

// Appends `copy` to a list in stream order, joined with the last one where it continues it. Sizes
// are bytes of a source and a destination element (1, 1 where there is no conversion).
void AppendCopy(std::vector<Copy>& copies, Copy copy, uint64_t source_size,
                uint64_t destination_size);
// Makes successive copies of one shape and constant steps one copy with a further level. Keeps the
// stream.
void Fold(std::vector<Copy>& copies, uint64_t source_size, uint64_t destination_size);
// `box` out of two pieces that contain it, as one copy. Conversion where the types differ.
Copy CopyOf(const Box& box, const Piece& source, const Piece& destination);

std::vector<Transfer> Lower(const Ranks& ranks, const SourceIndex& index, const Units& units,
                            absl::Span<const Part> parts);

// --- Bounds
// ------------------------------------------------------------------------------------------

// See xfer::LowerBound(). The pieces must have passed CheckPieces().
uint64_t LowerBound(const TensorTable& tensors, const Ranks& ranks, const SourceIndex& index);
// All of `plan.stats` but the bound, from its transfers.
void FillStats(const Ranks& ranks, Plan& plan);

}  // namespace xfer::plan_internal

#endif  // XFER_COMMON_PLAN_PLANNER_INTERNAL_H_
