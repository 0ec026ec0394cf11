// Proof that sources cover every destination piece exactly once, as units to be given to them.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

// Cuts the pieces of one destination after another.
class UnitBuilder {
 public:
  UnitBuilder(const TensorTable& tensors, const Ranks& ranks, SourceIndex& index)
      : tensors_(tensors), ranks_(ranks), index_(index) {}

  absl::Status AddDestination(int32_t rank) {
    rank_ = rank;
    manifest_ = ranks_.manifests[rank];
    XFER_RETURN_IF_ERROR(CheckPieces(tensors_, ranks_.ranks[rank], *manifest_));
    XFER_RETURN_IF_ERROR(CheckApart(tensors_, ranks_.ranks[rank], *manifest_));
    SortPieces();
    for (size_t i = 0; i < order_.size();) {
      const TensorId tensor = PieceAt(i).tensor;
      parts_.clear();
      for (; i < order_.size() && PieceAt(i).tensor == tensor; ++i) {
        XFER_RETURN_IF_ERROR(CutPiece(static_cast<uint32_t>(order_[i])));
      }
      if (parts_.size() > 1) {
        std::stable_sort(parts_.begin(), parts_.end(), [](const Found& a, const Found& b) {
          return CompareColumns(a.box, b.box) < 0;
        });
      }
      AddUnits();
    }
    return absl::OkStatus();
  }

  Units Take() { return std::move(out_); }

 private:
  // The common part of a piece and a source box.
  struct Found {
    Box box;
    Segment segment;
    uint32_t holders;
  };

  const Piece& PieceAt(size_t i) const {
    return manifest_->pieces[static_cast<uint32_t>(order_[i])];
  }

  // Orders pieces by tensor, then memory, so that the order in the manifest plays no part.
  void SortPieces() {
    order_.clear();
    for (size_t i = 0; i < manifest_->pieces.size(); ++i) {
      order_.push_back(static_cast<uint64_t>(manifest_->pieces[i].tensor) << 32 | i);
    }
    if (!std::is_sorted(order_.begin(), order_.end())) std::sort(order_.begin(), order_.end());
    for (size_t i = 0; i < order_.size();) {
      size_t end = i + 1;
      while (end < order_.size() && order_[end] >> 32 == order_[i] >> 32) ++end;
      std::sort(order_.begin() + i, order_.begin() + end, [&](uint64_t a, uint64_t b) {
        const Piece& x = manifest_->pieces[static_cast<uint32_t>(a)];
        const Piece& y = manifest_->pieces[static_cast<uint32_t>(b)];
        return x.region != y.region ? x.region < y.region : x.offset < y.offset;
      });
      i = end;
    }
  }

  absl::Status CutPiece(uint32_t piece_index) {
    const Piece& piece = manifest_->pieces[piece_index];
    int64_t covered = 0;
    DType unusable{};
    bool usable = true;
    index_.ForRows(piece.tensor, FirstRow(piece.box), EndRow(piece.box), [&](const SourceBox& s) {
      const int64_t shared = SharedElements(piece.box, s.box);
      if (shared == 0) return;
      covered += shared;
      const int32_t holders = index_.sets().Usable(s.holders, piece.dtype);
      if (holders < 0) {
        usable = false;
        unusable = index_.sets()[s.holders][0].type();
        return;
      }
      parts_.push_back({SharedBox(piece.box, s.box),
                        {piece_index, index_.IndexOf(s)},
                        static_cast<uint32_t>(holders)});
    });
    if (!usable) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensors_[piece.tensor].name, " is ", Name(unusable), " at its sources and ",
          Name(piece.dtype), " at ", ranks_.ranks[rank_].id.ToString(),
          "; xfer converts only BF16 and F16 to and from F32: register it with one of those"));
    }
    // Source boxes are disjoint, so the numbers of elements are equal only where all are covered.
    if (covered != piece.box.NumElements()) return Uncovered(piece);
    return absl::OkStatus();
  }

  absl::Status Uncovered(const Piece& piece) const {
    std::vector<Box> missing = {piece.box};
    for (const SourceBox& source : index_.Boxes(piece.tensor)) Remove(source.box, missing);
    std::sort(missing.begin(), missing.end(),
              [](const Box& a, const Box& b) { return CompareBoxes(a, b) < 0; });
    int64_t elements = 0;
    for (const Box& box : missing) elements += box.NumElements();
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor ", tensors_[piece.tensor].name, " ", piece.box.ToString(), " is needed by ",
        ranks_.ranks[rank_].id.ToString(), " but every source lacks ", elements, " of its ",
        piece.box.NumElements(), " elements, first of them ", missing.front().ToString(),
        "; register the training rank that holds them"));
  }

  // Joins the parts of one tensor that stack into units.
  void AddUnits() {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Found& part = parts_[i];
      const Piece& piece = manifest_->pieces[part.segment.piece];
      const bool joins = i > 0 && [&] {
        const Found& before = parts_[i - 1];
        const Piece& other = manifest_->pieces[before.segment.piece];
        return before.holders == part.holders && other.region == piece.region &&
               other.dtype == piece.dtype && Stacks(before.box, part.box);
      }();
      if (!joins) {
        Unit unit;
        unit.first_segment = static_cast<uint32_t>(out_.segments.size());
        unit.holders = part.holders;
        unit.destination = rank_;
        out_.units.push_back(unit);
      }
      Unit& unit = out_.units.back();
      unit.bytes += part.box.NumElements() * SizeOf(piece.dtype);
      unit.rows += Rows(part.box);
      ++unit.segments;
      out_.segments.push_back(part.segment);
    }
  }

  const TensorTable& tensors_;
  const Ranks& ranks_;
  SourceIndex& index_;
  int32_t rank_ = 0;
  const Manifest* manifest_ = nullptr;
  std::vector<uint64_t> order_;  // tensor << 32 | piece
  std::vector<Found> parts_;     // of the tensor in hand
  Units out_;
};

}  // namespace

absl::StatusOr<Units> BuildUnits(const TensorTable& tensors, const Ranks& ranks,
                                 SourceIndex& index) {
  UnitBuilder builder(tensors, ranks, index);
  for (int32_t r = ranks.sources; r < ranks.size(); ++r) {
    XFER_RETURN_IF_ERROR(builder.AddDestination(r));
  }
  return builder.Take();
}

}  // namespace xfer::plan_internal
