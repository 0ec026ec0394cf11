#include "common/layout/manifest.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/layout/footprint.h"

namespace xfer {
namespace {

// Runs that BuildManifest walks at most to prove that interleaved tensors lie apart; a few
// milliseconds.
constexpr int64_t kOverlapBudget = int64_t{1} << 20;

std::string Show(const Dims& dims) { return absl::StrCat("[", absl::StrJoin(dims, ", "), "]"); }

absl::Status Refuse(const TensorPlacement& placement, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", placement.name, " ", what));
}

Dims RowMajor(const Dims& shape, int64_t element) {
  Dims out(shape.size());
  int64_t step = element;
  for (size_t d = shape.size(); d-- > 0;) {
    out[d] = step;
    step *= shape[d];
  }
  return out;
}

// Where one tensor of the layout is.
struct Placed {
  const TensorPlacement* placement = nullptr;  // nullptr: not seen yet
  Dims strides;
  Footprint footprint;
};

absl::Status CheckType(const LocalTensor& tensor, const TensorPlacement& placement) {
  if (std::find(placement.shape.begin(), placement.shape.end(), 0) != placement.shape.end()) {
    return Refuse(placement, absl::StrCat("has shape ", Show(placement.shape),
                                          ", that is, no element; leave empty tensors out"));
  }
  if (placement.shape != tensor.shape) {
    return Refuse(placement,
                  absl::StrCat("has shape ", Show(placement.shape), "; this rank's layout needs ",
                               Show(tensor.shape),
                               ", so check the rank's coordinates and the model's parallelism"));
  }
  if (placement.dtype != tensor.dtype) {
    return Refuse(placement,
                  absl::StrCat("is ", Name(placement.dtype), "; it must be ", Name(tensor.dtype)));
  }
  return absl::OkStatus();
}

absl::Status Locate(const TensorPlacement& placement, absl::Span<const uint64_t> region_bytes,
                    Placed& out) {
  const int64_t element = SizeOf(placement.dtype);
  const Dims& strides = placement.strides;
  if (strides.empty()) {
    out.strides = RowMajor(placement.shape, element);
  } else if (strides.size() != placement.shape.size()) {
    return Refuse(placement,
                  absl::StrCat("has ", strides.size(), " strides ", Show(strides), " for shape ",
                               Show(placement.shape), "; give one stride a dimension, in bytes"));
  } else if (*std::min_element(strides.begin(), strides.end()) < 1) {
    return Refuse(placement, absl::StrCat("has strides ", Show(strides),
                                          "; every stride must be at least 1 byte, so register a "
                                          "contiguous copy"));
  } else {
    out.strides = strides;
  }
  const std::optional<Footprint> footprint =
      MakeFootprint(placement.offset, placement.shape, out.strides, element);
  if (!footprint.has_value()) {
    return Refuse(placement, absl::StrCat("has strides ", Show(out.strides), " bytes for shape ",
                                          Show(placement.shape), " of ", Name(placement.dtype),
                                          ", which overlap themselves or wrap; register a "
                                          "contiguous copy"));
  }
  if (placement.region < 0 || static_cast<size_t>(placement.region) >= region_bytes.size()) {
    return Refuse(placement, absl::StrCat("is in region ", placement.region, "; the rank has ",
                                          region_bytes.size(), ", counted from 0"));
  }
  const uint64_t region = region_bytes[placement.region];
  // In this order nothing wraps, whatever the numbers are.
  if (footprint->length > region || placement.offset > region - footprint->length) {
    return Refuse(placement,
                  absl::StrCat("needs ", footprint->length, " bytes at offset ", placement.offset,
                               "; region ", placement.region, " has ", region, " bytes"));
  }
  out.placement = &placement;
  out.footprint = *footprint;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Placed>> Join(const RankLayout& layout,
                                         absl::Span<const TensorPlacement> placements,
                                         absl::Span<const uint64_t> region_bytes) {
  absl::flat_hash_map<absl::string_view, size_t> index;
  index.reserve(layout.tensors.size());
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    if (!index.emplace(layout.tensors[i].name, i).second) {
      return absl::InternalError(
          absl::StrCat("layout has tensor ", layout.tensors[i].name, " twice"));
    }
  }
  std::vector<Placed> placed(layout.tensors.size());
  for (const TensorPlacement& placement : placements) {
    const auto it = index.find(placement.name);
    if (it == index.end()) {
      return Refuse(placement,
                    "is not in this rank's layout; leave it out, or check the model's "
                    "name and the rank's coordinates");
    }
    Placed& at = placed[it->second];
    if (at.placement != nullptr) return Refuse(placement, "is given twice; give it once");
    XFER_RETURN_IF_ERROR(CheckType(layout.tensors[it->second], placement));
    XFER_RETURN_IF_ERROR(Locate(placement, region_bytes, at));
  }
  if (placements.size() == placed.size()) return placed;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (placed[i].placement != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", layout.tensors[i].name, " is missing (", placements.size(), " of ",
                     placed.size(), " were given); this rank's layout needs it with shape ",
                     Show(layout.tensors[i].shape)));
  }
  return placed;
}

absl::Status CheckApart(const Placed& a, const Placed& b, int64_t& budget) {
  // The pair itself counts too, so that thousands of interleaved views cannot cost a quadratic
  // time.
  const std::optional<bool> overlap =
      budget-- > 0 ? Overlap(a.footprint, b.footprint, budget) : std::nullopt;
  if (overlap.has_value() && !*overlap) return absl::OkStatus();
  const auto range = [](const Placed& p) {
    return absl::StrCat("bytes ", p.footprint.offset, " to ",
                        p.footprint.offset + p.footprint.length);
  };
  return Refuse(
      *a.placement,
      absl::StrCat("(", range(a), " of region ", a.placement->region, ") ",
                   overlap.has_value() ? "overlaps" : "cannot be told apart from", " tensor ",
                   b.placement->name, " (", range(b), "); give every tensor memory of its own"));
}

// Sweeps over each region; a tensor is compared with those that begin before it ends.
absl::Status CheckNoOverlap(const std::vector<Placed>& placed) {
  std::vector<const Placed*> order;
  order.reserve(placed.size());
  for (const Placed& p : placed) order.push_back(&p);
  std::sort(order.begin(), order.end(), [](const Placed* a, const Placed* b) {
    return std::make_pair(a->placement->region, a->footprint.offset) <
           std::make_pair(b->placement->region, b->footprint.offset);
  });
  int64_t budget = kOverlapBudget;
  for (size_t i = 0; i < order.size(); ++i) {
    const Placed& a = *order[i];
    const uint64_t end = a.footprint.offset + a.footprint.length;
    for (size_t j = i + 1; j < order.size(); ++j) {
      const Placed& b = *order[j];
      if (b.placement->region != a.placement->region || b.footprint.offset >= end) break;
      XFER_RETURN_IF_ERROR(CheckApart(a, b, budget));
    }
  }
  return absl::OkStatus();
}

void Emit(const LocalTensor& tensor, const Placed& at, Manifest& out) {
  for (const Part& part : tensor.parts) {
    Piece& piece = out.pieces.emplace_back();
    piece.tensor = part.tensor;
    piece.box = part.hf;
    piece.dtype = tensor.dtype;
    piece.region = at.placement->region;
    piece.offset = at.placement->offset;
    for (size_t d = 0; d < at.strides.size(); ++d) {
      piece.offset += static_cast<uint64_t>(part.local_start[d] * at.strides[d]);
    }
    piece.strides.assign(at.strides.end() - part.hf.extent.size(), at.strides.end());
    if (!out.fused_groups.empty() || !tensor.fused_group.empty()) {
      out.fused_groups.resize(out.pieces.size());
      out.fused_groups.back() = tensor.fused_group;
    }
  }
}

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t total = 0;
  for (const Piece& piece : pieces) {
    total += static_cast<uint64_t>(piece.box.NumElements() * SizeOf(piece.dtype));
  }
  return total;
}

absl::StatusOr<Manifest> BuildManifest(const TensorTable& table, const RankLayout& layout,
                                       absl::Span<const TensorPlacement> placements,
                                       absl::Span<const uint64_t> region_bytes) {
  for (const LocalTensor& tensor : layout.tensors) {
    for (const Part& part : tensor.parts) {
      if (part.tensor < 0 || part.tensor >= table.size()) {
        return absl::InternalError(absl::StrCat("layout of ", tensor.name,
                                                " is not of this model: ", "it has tensor number ",
                                                part.tensor));
      }
    }
  }
  XFER_ASSIGN_OR_RETURN(const std::vector<Placed> placed, Join(layout, placements, region_bytes));
  XFER_RETURN_IF_ERROR(CheckNoOverlap(placed));
  Manifest out;
  out.region_bytes.assign(region_bytes.begin(), region_bytes.end());
  size_t pieces = 0;
  for (const LocalTensor& tensor : layout.tensors) pieces += tensor.parts.size();
  out.pieces.reserve(pieces);
  for (size_t i = 0; i < placed.size(); ++i) Emit(layout.tensors[i], placed[i], out);
  return out;
}

}  // namespace xfer
