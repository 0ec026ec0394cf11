// Checks of a rank's pieces: inside their tensors and regions, and apart from each other in memory.
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

std::string Label(const TensorTable& tensors, const PlanRank& rank, const Piece& piece) {
  std::string tensor = piece.tensor >= 0 && piece.tensor < tensors.size()
                           ? tensors[piece.tensor].name
                           : absl::StrCat("#", piece.tensor);
  return absl::StrCat(rank.id.ToString(), ", tensor ", tensor, " ", piece.box.ToString());
}

// What is wrong with a piece, or null.
const char* FaultOf(const TensorTable& tensors, const Manifest& manifest, const Piece& piece) {
  if (piece.tensor < 0 || piece.tensor >= tensors.size()) return "its tensor is unknown";
  const Dims& shape = tensors[piece.tensor].shape;
  const size_t dims = shape.size();
  if (piece.box.start.size() != dims || piece.box.extent.size() != dims ||
      piece.strides.size() != dims) {
    return "it has another number of dimensions than its tensor";
  }
  if (piece.dtype < DType::kBF16 || piece.dtype > DType::kI16) return "its type is unknown";
  if (piece.region < 0 || static_cast<size_t>(piece.region) >= manifest.region_bytes.size()) {
    return "its region is unknown";
  }
  const uint64_t region_bytes = manifest.region_bytes[piece.region];
  uint64_t end = piece.offset;
  bool wraps = __builtin_add_overflow(end, static_cast<uint64_t>(SizeOf(piece.dtype)), &end);
  for (size_t d = 0; d < dims; ++d) {
    const int64_t start = piece.box.start[d];
    const int64_t extent = piece.box.extent[d];
    if (start < 0 || extent < 1 || start > shape[d] || extent > shape[d] - start) {
      return "it leaves its tensor";
    }
    if (extent == 1) continue;
    if (piece.strides[d] <= 0) return "a stride is not positive";
    uint64_t reach = 0;
    wraps |= __builtin_mul_overflow(static_cast<uint64_t>(extent - 1),
                                    static_cast<uint64_t>(piece.strides[d]), &reach);
    wraps |= __builtin_add_overflow(end, reach, &end);
  }
  if (wraps || end > region_bytes) return "it leaves its region";
  return nullptr;
}

// The memory of a piece: runs at `offset`, repeated over levels with falling strides.
struct Footprint {
  struct Level {
    int64_t count;
    int64_t stride;
  };
  int64_t run = 0;
  absl::InlinedVector<Level, 3> levels;

  // Bytes from the first to behind the last, of the levels from `level` on.
  int64_t Span(size_t level) const {
    int64_t span = run;
    for (size_t l = level; l < levels.size(); ++l) {
      span += (levels[l].count - 1) * levels[l].stride;
    }
    return span;
  }
};

Footprint FootprintOf(const Piece& piece) {
  Footprint out;
  out.run = SizeOf(piece.dtype);
  for (size_t d = 0; d < piece.strides.size(); ++d) {
    if (piece.box.extent[d] > 1) out.levels.push_back({piece.box.extent[d], piece.strides[d]});
  }
  std::sort(out.levels.begin(), out.levels.end(),
            [](const auto& a, const auto& b) { return a.stride > b.stride; });
  while (!out.levels.empty() && out.levels.back().stride == out.run) {
    out.run *= out.levels.back().count;
    out.levels.pop_back();
  }
  return out;
}

bool OverlapsItself(const Footprint& footprint) {
  for (size_t l = 0; l < footprint.levels.size(); ++l) {
    if (footprint.levels[l].stride < footprint.Span(l + 1)) return true;
  }
  return false;
}

// Decides whether two footprints share a byte. Exact while `budget` lasts, which only footprints
// with different strides use up; then true, so that what cannot be proved is refused.
bool Overlap(const Footprint& a, size_t la, int64_t at, const Footprint& b, size_t lb, int64_t bt,
             int& budget) {
  if (at + a.Span(la) <= bt || bt + b.Span(lb) <= at) return false;
  const bool a_ends = la == a.levels.size();
  const bool b_ends = lb == b.levels.size();
  if (a_ends && b_ends) return true;
  if (--budget < 0) return true;
  if (!a_ends && !b_ends && a.levels[la].stride == b.levels[lb].stride) {
    // Inner parts are no wider than the stride, so only neighbouring steps can meet.
    const int64_t stride = a.levels[la].stride;
    const int64_t distance = bt - at;
    const int64_t near = -distance / stride;
    const int64_t low = std::max(near - 1, -(a.levels[la].count - 1));
    const int64_t high = std::min(near + 1, b.levels[lb].count - 1);
    for (int64_t step = low; step <= high; ++step) {
      if (Overlap(a, la + 1, at, b, lb + 1, at + distance + step * stride, budget)) return true;
    }
    return false;
  }
  if (a_ends || (!b_ends && b.levels[lb].stride > a.levels[la].stride)) {
    return Overlap(b, lb, bt, a, la, at, budget);
  }
  // Unroll a's outer level over the steps that reach b's span.
  const auto [count, stride] = a.levels[la];
  const int64_t first = std::max<int64_t>(0, (bt - at - a.Span(la + 1)) / stride);
  for (int64_t i = first; i < count && at + i * stride < bt + b.Span(lb); ++i) {
    if (Overlap(a, la + 1, at + i * stride, b, lb, bt, budget)) return true;
  }
  return false;
}

struct Extent {
  int32_t region;
  uint32_t piece;
  uint64_t begin;
  uint64_t end;

  bool operator<(const Extent& o) const {
    return std::tie(region, begin, piece) < std::tie(o.region, o.begin, o.piece);
  }
};

constexpr int kOverlapBudget = 1 << 16;

}  // namespace

absl::Status CheckPieces(const TensorTable& tensors, const PlanRank& rank,
                         const Manifest& manifest) {
  for (const Piece& piece : manifest.pieces) {
    const char* fault = FaultOf(tensors, manifest, piece);
    if (fault == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Label(tensors, rank, piece), " in region ", piece.region, " at offset ",
                     piece.offset, ", strides [", absl::StrJoin(piece.strides, ", "), "]: ", fault,
                     "; register the rank again with its true placement"));
  }
  return absl::OkStatus();
}

absl::Status CheckApart(const TensorTable& tensors, const PlanRank& rank,
                        const Manifest& manifest) {
  std::vector<Extent> extents;
  extents.reserve(manifest.pieces.size());
  for (uint32_t i = 0; i < manifest.pieces.size(); ++i) {
    const Piece& piece = manifest.pieces[i];
    const Footprint footprint = FootprintOf(piece);
    if (OverlapsItself(footprint)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Label(tensors, rank, piece), " overlaps itself in memory with strides [",
                       absl::StrJoin(piece.strides, ", "), "]; give each element its own bytes"));
    }
    extents.push_back({piece.region, i, piece.offset, piece.offset + footprint.Span(0)});
  }
  if (!std::is_sorted(extents.begin(), extents.end())) std::sort(extents.begin(), extents.end());
  std::vector<Extent> open;  // earlier extents that reach behind the present one's start
  for (const Extent& now : extents) {
    std::erase_if(open,
                  [&](const Extent& o) { return o.region != now.region || o.end <= now.begin; });
    for (const Extent& other : open) {
      const Piece& a = manifest.pieces[other.piece];
      const Piece& b = manifest.pieces[now.piece];
      int budget = kOverlapBudget;
      if (Overlap(FootprintOf(a), 0, 0, FootprintOf(b), 0,
                  static_cast<int64_t>(now.begin - other.begin), budget)) {
        return absl::InvalidArgumentError(
            absl::StrCat(Label(tensors, rank, a), " at offset ", a.offset, " and ",
                         tensors[b.tensor].name, " ", b.box.ToString(), " at offset ", b.offset,
                         " overlap in region ", a.region, "; give each tensor its own bytes"));
      }
    }
    open.push_back(now);
  }
  return absl::OkStatus();
}

}  // namespace xfer::plan_internal
