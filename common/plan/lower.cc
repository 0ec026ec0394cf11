// From parts of boxes to strided copies.
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

bool SameShape(const Copy& a, const Copy& b) { return a.run == b.run && a.levels == b.levels; }

// True where a's levels without its first `drop` are those of b without its first `skip`.
bool SameTail(const Copy& a, size_t drop, const Copy& b, size_t skip) {
  return std::equal(a.levels.begin() + drop, a.levels.end(), b.levels.begin() + skip,
                    b.levels.end());
}

// True where `next` starts `steps` steps of `level` behind `first`.
bool Follows(const Copy& first, const Copy& next, uint64_t steps, const CopyLevel& level) {
  return next.source_offset - first.source_offset ==
             steps * static_cast<uint64_t>(level.source_stride) &&
         next.destination_offset - first.destination_offset ==
             steps * static_cast<uint64_t>(level.destination_stride);
}

// Makes `last` include `next` where that is the same stream without a further level.
bool Continue(Copy& last, const Copy& next, uint64_t source_size, uint64_t destination_size) {
  const uint64_t source_run = last.run / destination_size * source_size;
  if (last.levels.empty() && next.levels.empty()) {
    if (next.source_offset != last.source_offset + source_run ||
        next.destination_offset != last.destination_offset + last.run) {
      return false;
    }
    last.run += next.run;
    return true;
  }
  if (last.run != next.run) return false;
  if (!last.levels.empty()) {
    CopyLevel& outer = last.levels.front();
    const bool follows = Follows(last, next, outer.count, outer);
    // One more step of last's outer level.
    if (follows && SameTail(last, 1, next, 0)) {
      ++outer.count;
      return true;
    }
    // More steps of the same outer level.
    if (follows && !next.levels.empty() && SameTail(last, 1, next, 1) &&
        next.levels.front().source_stride == outer.source_stride &&
        next.levels.front().destination_stride == outer.destination_stride) {
      outer.count += next.levels.front().count;
      return true;
    }
  }
  // `last` is the step before next's outer level.
  if (!next.levels.empty() && SameTail(last, 0, next, 1) &&
      Follows(last, next, 1, next.levels.front())) {
    last.levels = next.levels;
    ++last.levels.front().count;
    return true;
  }
  return false;
}

CopyLevel StepBetween(const Copy& a, const Copy& b) {
  return {2, static_cast<int64_t>(b.source_offset - a.source_offset),
          static_cast<int64_t>(b.destination_offset - a.destination_offset)};
}

// How many copies from `first` on have one shape and one step between them.
size_t EqualSteps(const std::vector<Copy>& copies, size_t first) {
  if (first + 1 >= copies.size() || !SameShape(copies[first], copies[first + 1])) return 1;
  const CopyLevel step = StepBetween(copies[first], copies[first + 1]);
  size_t end = first + 2;
  while (end < copies.size() && SameShape(copies[first], copies[end]) &&
         StepBetween(copies[end - 1], copies[end]) == step) {
    ++end;
  }
  return end - first;
}

// One pass of folding; true where the list became shorter.
bool FoldOnce(std::vector<Copy>& copies, uint64_t source_size, uint64_t destination_size) {
  std::vector<Copy> out;
  out.reserve(copies.size());
  for (size_t i = 0; i < copies.size();) {
    size_t n = EqualSteps(copies, i);
    // A pair whose second member starts a longer series is left to it.
    if (n == 2 && EqualSteps(copies, i + 1) > 2) n = 1;
    Copy copy = std::move(copies[i]);
    if (n > 1) {
      CopyLevel step = StepBetween(copy, copies[i + 1]);
      step.count = n;
      copy.levels.insert(copy.levels.begin(), step);
    }
    AppendCopy(out, std::move(copy), source_size, destination_size);
    i += n;
  }
  const bool shorter = out.size() < copies.size();
  copies = std::move(out);
  return shorter;
}

}  // namespace

void AppendCopy(std::vector<Copy>& copies, Copy copy, uint64_t source_size,
                uint64_t destination_size) {
  if (!copies.empty() && Continue(copies.back(), copy, source_size, destination_size)) return;
  copies.push_back(std::move(copy));
}

void Fold(std::vector<Copy>& copies, uint64_t source_size, uint64_t destination_size) {
  while (copies.size() > 1 && FoldOnce(copies, source_size, destination_size)) {
  }
}

Copy CopyOf(const Box& box, const Piece& source, const Piece& destination) {
  const int64_t source_size = SizeOf(source.dtype);
  const int64_t destination_size = SizeOf(destination.dtype);
  Copy copy;
  copy.source_offset = source.offset;
  copy.destination_offset = destination.offset;
  int64_t elements = 1;  // of the run
  for (size_t d = box.start.size(); d-- > 0;) {
    const int64_t source_stride = source.strides[d];
    const int64_t destination_stride = destination.strides[d];
    copy.source_offset += (box.start[d] - source.box.start[d]) * source_stride;
    copy.destination_offset += (box.start[d] - destination.box.start[d]) * destination_stride;
    const int64_t extent = box.extent[d];
    if (extent == 1) continue;
    if (copy.levels.empty()) {
      if (source_stride == elements * source_size &&
          destination_stride == elements * destination_size) {
        elements *= extent;
        continue;
      }
    } else {
      CopyLevel& inner = copy.levels.front();
      const int64_t count = static_cast<int64_t>(inner.count);
      if (source_stride == count * inner.source_stride &&
          destination_stride == count * inner.destination_stride) {
        inner.count *= extent;
        continue;
      }
    }
    copy.levels.insert(copy.levels.begin(),
                       {static_cast<uint64_t>(extent), source_stride, destination_stride});
  }
  copy.run = static_cast<uint64_t>(elements * destination_size);
  return copy;
}

namespace {

// Builds the transfers of one destination after another.
class Lowerer {
 public:
  Lowerer(const Ranks& ranks, const SourceIndex& index, const Units& units)
      : ranks_(ranks), index_(index), units_(units) {}

  void AddPart(const Part& part) {
    const Unit& unit = units_.units[part.unit];
    const std::vector<Piece>& pieces = ranks_.manifests[unit.destination]->pieces;
    int64_t row = 0;  // of the unit, at which the segment starts
    for (uint32_t s = 0; s < unit.segments && row < part.first_row + part.rows; ++s) {
      const Segment& segment = units_.segments[unit.first_segment + s];
      const Piece& destination = pieces[segment.piece];
      const SourceBox& source = index_.box(segment.source);
      Box box = SharedBox(destination.box, source.box);
      const int64_t rows = Rows(box);
      const int64_t low = std::max(row, part.first_row);
      const int64_t high = std::min(row + rows, part.first_row + part.rows);
      if (low < high) {
        if (high - low != rows) {
          box.start[0] += low - row;
          box.extent[0] = high - low;
        }
        AddBox(std::move(box), unit.destination, FromOf(part, s, source), destination);
      }
      row += rows;
    }
    transfer_of_part_.push_back(static_cast<uint32_t>(out_.size()) - 1);
  }

  std::vector<Transfer> Finish(absl::Span<const Part> parts) {
    EndTransfer();
    EndTensor();
    std::vector<TransferId> new_ids(out_.size());
    for (size_t i = 0; i < out_.size(); ++i) {
      new_ids[out_[i].id] = static_cast<TransferId>(i);
      out_[i].id = static_cast<TransferId>(i);
    }
    for (size_t p = 0; p < parts.size(); ++p) {
      if (parts[p].peer < 0) continue;
      WaitForPeer(parts, parts[p], new_ids, out_[new_ids[transfer_of_part_[p]]]);
    }
    return std::move(out_);
  }

  void Reserve(size_t n) {
    out_.reserve(n);
    transfer_of_part_.reserve(n);
  }

 private:
  // Where the bytes of a box come from.
  struct From {
    int32_t rank;
    const Piece& piece;
  };

  // Of segment `s` of the part's unit, that is common to `source`. A peer's unit has the same
  // segments.
  From FromOf(const Part& part, uint32_t s, const SourceBox& source) const {
    if (part.peer >= 0) {
      const Unit& peer = units_.units[part.peer];
      const Segment& segment = units_.segments[peer.first_segment + s];
      return {peer.destination, ranks_.manifests[peer.destination]->pieces[segment.piece]};
    }
    const Holder& holder = index_.sets()[units_.units[part.unit].holders][part.holder];
    return {holder.rank, index_.PieceOf(source, holder)};
  }

  // Makes `transfer`, which holds `part`, wait for all that fill its rows at the peer.
  void WaitForPeer(absl::Span<const Part> parts, const Part& part,
                   const std::vector<TransferId>& new_ids, Transfer& transfer) const {
    const auto first = std::lower_bound(
        parts.begin(), parts.end(), part.peer,
        [](const Part& p, int32_t unit) { return static_cast<int32_t>(p.unit) < unit; });
    for (auto it = first; it != parts.end() && static_cast<int32_t>(it->unit) == part.peer; ++it) {
      if (it->first_row >= part.first_row + part.rows ||
          part.first_row >= it->first_row + it->rows) {
        continue;
      }
      const TransferId id = new_ids[transfer_of_part_[it - parts.begin()]];
      auto& waits = transfer.waits_for;
      const auto at = std::lower_bound(waits.begin(), waits.end(), id);
      if (at == waits.end() || *at != id) waits.insert(at, id);
    }
  }

  void AddBox(Box box, int32_t rank, const From& from, const Piece& destination) {
    Copy copy = CopyOf(box, from.piece, destination);
    const uint64_t bytes = copy.bytes();
    if (open_ && Joins(box, rank, from, destination)) {
      Transfer& last = out_.back();
      last.box.extent[0] += Rows(box);
      last.bytes += bytes;
      AppendCopy(last.copies, std::move(copy), SizeOf(from.piece.dtype), SizeOf(destination.dtype));
      return;
    }
    EndTransfer();
    if (!out_.empty() &&
        (out_.back().destination != rank || out_.back().tensor != destination.tensor)) {
      EndTensor();
    }
    Transfer& transfer = out_.emplace_back();
    transfer.tensor = destination.tensor;
    transfer.box = std::move(box);
    transfer.id = static_cast<TransferId>(out_.size() - 1);  // until Finish()
    transfer.source = from.rank;
    transfer.source_region = from.piece.region;
    transfer.destination = rank;
    transfer.destination_region = destination.region;
    transfer.bytes = bytes;
    transfer.conversion = {from.piece.dtype, destination.dtype};
    transfer.copies.push_back(std::move(copy));
    open_ = true;
  }

  bool Joins(const Box& box, int32_t rank, const From& from, const Piece& destination) const {
    const Transfer& last = out_.back();
    return last.destination == rank && last.tensor == destination.tensor &&
           last.source == from.rank && last.source_region == from.piece.region &&
           last.destination_region == destination.region &&
           last.conversion.from == from.piece.dtype && last.conversion.to == destination.dtype &&
           Stacks(last.box, box);
  }

  void EndTransfer() {
    if (open_ && out_.back().copies.size() > 1) {
      const Conversion& c = out_.back().conversion;
      Fold(out_.back().copies, SizeOf(c.from), SizeOf(c.to));
      out_.back().copies.shrink_to_fit();
    }
    open_ = false;
  }

  // Units come in an order that lets boxes stack; ids follow the boxes themselves.
  void EndTensor() {
    const auto begin = out_.begin() + first_of_tensor_;
    if (out_.end() - begin > 1) {
      std::stable_sort(begin, out_.end(), [](const Transfer& a, const Transfer& b) {
        return CompareBoxes(a.box, b.box) < 0;
      });
    }
    first_of_tensor_ = out_.size();
  }

  const Ranks& ranks_;
  const SourceIndex& index_;
  const Units& units_;
  std::vector<Transfer> out_;
  std::vector<uint32_t> transfer_of_part_;  // as Transfer::id until Finish()
  bool open_ = false;                       // out_.back() may still grow
  size_t first_of_tensor_ = 0;              // in out_: of the destination and tensor in hand
};

}  // namespace

std::vector<Transfer> Lower(const Ranks& ranks, const SourceIndex& index, const Units& units,
                            absl::Span<const Part> parts) {
  Lowerer lowerer(ranks, index, units);
  lowerer.Reserve(parts.size());
  for (const Part& part : parts) lowerer.AddPart(part);
  return lowerer.Finish(parts);
}

}  // namespace xfer::plan_internal
