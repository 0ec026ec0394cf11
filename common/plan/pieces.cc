// Checks of a rank's pieces: inside their tensors and regions, and apart from each other in memory.
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/layout/footprint.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

std::string Label(const TensorTable& tensors, const PlanRank& rank, const Piece& piece) {
  std::string tensor = piece.tensor >= 0 && piece.tensor < tensors.size()
                           ? tensors[piece.tensor].name
                           : absl::StrCat("#", piece.tensor);
  // Not Box::ToString(), whose sums a hostile box would overflow.
  return absl::StrCat(rank.id.ToString(), ", tensor ", tensor, ", box of extent [",
                      absl::StrJoin(piece.box.extent, ", "), "] at [",
                      absl::StrJoin(piece.box.start, ", "), "]");
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

std::optional<Footprint> FootprintOf(const Piece& piece) {
  return MakeFootprint(piece.offset, piece.box.extent, piece.strides, SizeOf(piece.dtype));
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

// Runs that may be walked to prove the pieces of one rank apart. Only pieces that interleave with
// different strides are walked; a real rank has none.
constexpr int64_t kWalkBudget = 1 << 22;

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
    const std::optional<Footprint> footprint = FootprintOf(piece);
    if (!footprint.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Label(tensors, rank, piece), " overlaps itself in memory with strides [",
                       absl::StrJoin(piece.strides, ", "), "]; give each element its own bytes"));
    }
    extents.push_back({piece.region, i, piece.offset, piece.offset + footprint->length});
  }
  if (!std::is_sorted(extents.begin(), extents.end())) std::sort(extents.begin(), extents.end());
  int64_t budget = kWalkBudget;
  std::vector<Extent> open;  // earlier extents that reach behind the present one's start
  for (const Extent& now : extents) {
    std::erase_if(open,
                  [&](const Extent& o) { return o.region != now.region || o.end <= now.begin; });
    for (const Extent& other : open) {
      const Piece& a = manifest.pieces[other.piece];
      const Piece& b = manifest.pieces[now.piece];
      const std::optional<bool> overlap = Overlap(*FootprintOf(a), *FootprintOf(b), budget);
      // What cannot be proved is refused.
      if (overlap.value_or(true)) {
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
