// Units of different destinations that have the same content: see GroupUnits().
#include "absl/hash/hash.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

class Grouper {
 public:
  Grouper(const Ranks& ranks, const SourceIndex& index, const Units& units)
      : ranks_(ranks), index_(index), units_(units) {}

  std::vector<uint32_t> Run(absl::Span<const uint32_t> which) {
    std::vector<uint32_t> groups(which.size());
    absl::flat_hash_map<uint64_t, uint32_t> by_hash;
    std::vector<uint32_t> first;  // by group: its first unit
    for (size_t i = 0; i < which.size(); ++i) {
      const auto [it, is_new] =
          by_hash.try_emplace(HashOf(which[i]), static_cast<uint32_t>(first.size()));
      // Different units of one hash are as good as never met; the later one stays alone.
      if (is_new || !Equal(first[it->second], which[i])) {
        groups[i] = static_cast<uint32_t>(first.size());
        first.push_back(which[i]);
      } else {
        groups[i] = it->second;
      }
    }
    return groups;
  }

 private:
  const Piece& PieceOf(const Unit& unit, uint32_t segment) const {
    return ranks_.manifests[unit.destination]
        ->pieces[units_.segments[unit.first_segment + segment].piece];
  }
  const SourceBox& SourceOf(const Unit& unit, uint32_t segment) const {
    return index_.box(units_.segments[unit.first_segment + segment].source);
  }

  // By what the destination asks of its source boxes; a box that reaches over a source box's end is
  // left as it is, since Equal() compares what is common.
  uint64_t HashOf(uint32_t u) const {
    const Unit& unit = units_.units[u];
    const Segment& segment = units_.segments[unit.first_segment];
    const Box box = SharedBox(PieceOf(unit, 0).box, SourceOf(unit, 0).box);
    return absl::HashOf(segment.source, unit.segments, unit.bytes, unit.rows, box.start,
                        box.extent);
  }

  bool Equal(uint32_t u, uint32_t v) const {
    const Unit& a = units_.units[u];
    const Unit& b = units_.units[v];
    if (a.bytes != b.bytes || a.segments != b.segments || a.rows != b.rows) return false;
    if (PieceOf(a, 0).dtype != PieceOf(b, 0).dtype) return false;
    for (uint32_t s = 0; s < a.segments; ++s) {
      const SourceBox& source = SourceOf(a, s);
      if (&source != &SourceOf(b, s)) return false;
      const Box& x = PieceOf(a, s).box;
      const Box& y = PieceOf(b, s).box;
      if (x != y && SharedBox(x, source.box) != SharedBox(y, source.box)) return false;
    }
    return true;
  }

  const Ranks& ranks_;
  const SourceIndex& index_;
  const Units& units_;
};

}  // namespace

std::vector<uint32_t> GroupUnits(const Ranks& ranks, const SourceIndex& index, const Units& units,
                                 absl::Span<const uint32_t> which) {
  return Grouper(ranks, index, units).Run(which);
}

}  // namespace xfer::plan_internal
