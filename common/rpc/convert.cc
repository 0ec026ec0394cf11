#include "common/rpc/convert.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {

template <typename Repeated>
Dims DimsOf(const Repeated& numbers) {
  return Dims(numbers.begin(), numbers.end());
}

template <typename Repeated>
void Fill(const Dims& dims, Repeated* out) {
  out->Assign(dims.begin(), dims.end());
}

absl::Status CheckRank(size_t dims, const std::string& what) {
  if (dims >= 1 && dims <= kMaxDims) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", dims, " dimensions; 1 to ", kMaxDims, " are supported"));
}

absl::StatusOr<Box> FromProto(const v1::Box& box, const std::string& what) {
  Box out{DimsOf(box.start()), DimsOf(box.extent())};
  XFER_RETURN_IF_ERROR(CheckRank(out.start.size(), what));
  if (out.start.size() != out.extent.size()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has ", out.start.size(), " starts and ",
                                                   out.extent.size(),
                                                   " extents; they must be as many"));
  }
  for (size_t d = 0; d < out.start.size(); ++d) {
    int64_t end;
    if (out.start[d] < 0 || out.extent[d] <= 0 ||
        __builtin_add_overflow(out.start[d], out.extent[d], &end)) {
      return absl::InvalidArgumentError(absl::StrCat(what, " ", out.ToString(),
                                                     " has a negative start, an extent below 1, or "
                                                     "an end that wraps"));
    }
  }
  return out;
}

void FillBox(const Box& box, v1::Box* out) {
  Fill(box.start, out->mutable_start());
  Fill(box.extent, out->mutable_extent());
}

}  // namespace

v1::DType ToProto(DType dtype) { return static_cast<v1::DType>(dtype); }

absl::StatusOr<DType> FromProto(v1::DType dtype) {
  if (dtype == v1::DTYPE_UNSPECIFIED || !v1::DType_IsValid(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("element type ", static_cast<int>(dtype), " is not one of xfer.v1.DType"));
  }
  return static_cast<DType>(dtype);
}

v1::RankId ToProto(const RankId& id) {
  v1::RankId out;
  out.set_role(static_cast<v1::Role>(id.role));
  out.set_engine(id.engine);
  out.set_rank(id.rank);
  return out;
}

absl::StatusOr<RankId> FromProto(const v1::RankId& id) {
  if (id.role() != v1::ROLE_TRAINER && id.role() != v1::ROLE_ROLLOUT) {
    return absl::InvalidArgumentError(absl::StrCat("role ", static_cast<int>(id.role()),
                                                   " is neither ROLE_TRAINER nor ROLE_ROLLOUT"));
  }
  if (id.rank() < 0 || id.engine() < 0 || (id.role() == v1::ROLE_TRAINER && id.engine() != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine ", id.engine(), " rank ", id.rank(),
                     ": neither may be negative, and a trainer's engine is 0"));
  }
  return RankId{static_cast<Role>(id.role()), id.engine(), id.rank()};
}

v1::TensorPlacement ToProto(const TensorPlacement& placement) {
  v1::TensorPlacement out;
  out.set_name(placement.name);
  out.set_dtype(ToProto(placement.dtype));
  Fill(placement.shape, out.mutable_shape());
  out.set_region(placement.region);
  out.set_offset_bytes(placement.offset);
  Fill(placement.strides, out.mutable_strides());
  return out;
}

absl::StatusOr<TensorPlacement> FromProto(const v1::TensorPlacement& placement) {
  TensorPlacement out;
  out.name = placement.name();
  const std::string what = absl::StrCat("tensor \"", out.name, "\"");
  absl::StatusOr<DType> dtype = FromProto(placement.dtype());
  if (!dtype.ok()) return Annotate(dtype.status(), what);
  out.dtype = *dtype;
  out.shape = DimsOf(placement.shape());
  XFER_RETURN_IF_ERROR(CheckRank(out.shape.size(), what));
  out.region = placement.region();
  out.offset = placement.offset_bytes();
  out.strides = DimsOf(placement.strides());
  return out;
}

v1::Piece ToProto(const Piece& piece) {
  v1::Piece out;
  out.set_tensor(piece.tensor);
  FillBox(piece.box, out.mutable_box());
  out.set_dtype(ToProto(piece.dtype));
  out.set_region(piece.region);
  out.set_offset_bytes(piece.offset);
  Fill(piece.strides, out.mutable_strides());
  return out;
}

absl::StatusOr<Piece> FromProto(const v1::Piece& piece) {
  const std::string what = absl::StrCat("piece of tensor ", piece.tensor());
  Piece out;
  out.tensor = piece.tensor();
  XFER_ASSIGN_OR_RETURN(out.box, FromProto(piece.box(), what));
  XFER_ASSIGN_OR_RETURN(out.dtype, FromProto(piece.dtype()));
  out.region = piece.region();
  out.offset = piece.offset_bytes();
  out.strides = DimsOf(piece.strides());
  if (out.tensor < 0 || out.region < 0 || out.strides.size() != out.box.start.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": negative tensor or region (", out.region, "), or ",
                     out.strides.size(), " strides for ", out.box.start.size(), " dimensions"));
  }
  return out;
}

v1::Transfer ToProto(const Transfer& transfer) {
  v1::Transfer out;
  out.set_id(transfer.id);
  out.set_tensor(transfer.tensor);
  FillBox(transfer.box, out.mutable_box());
  out.set_source(transfer.source);
  out.set_source_region(transfer.source_region);
  out.set_destination(transfer.destination);
  out.set_destination_region(transfer.destination_region);
  out.mutable_copies()->Reserve(static_cast<int>(transfer.copies.size()));
  for (const Copy& copy : transfer.copies) {
    v1::Copy* to = out.add_copies();
    to->set_source_offset(copy.source_offset);
    to->set_destination_offset(copy.destination_offset);
    to->set_run(copy.run);
    for (const CopyLevel& level : copy.levels) {
      v1::CopyLevel* l = to->add_levels();
      l->set_count(level.count);
      l->set_source_stride(level.source_stride);
      l->set_destination_stride(level.destination_stride);
    }
  }
  out.set_bytes(transfer.bytes);
  out.set_from(ToProto(transfer.conversion.from));
  out.set_to(ToProto(transfer.conversion.to));
  out.mutable_waits_for()->Assign(transfer.waits_for.begin(), transfer.waits_for.end());
  return out;
}

absl::StatusOr<Transfer> FromProto(const v1::Transfer& transfer) {
  const std::string what = absl::StrCat("transfer ", transfer.id());
  Transfer out;
  out.id = transfer.id();
  out.tensor = transfer.tensor();
  XFER_ASSIGN_OR_RETURN(out.box, FromProto(transfer.box(), what));
  out.source = transfer.source();
  out.source_region = transfer.source_region();
  out.destination = transfer.destination();
  out.destination_region = transfer.destination_region();
  if (out.source < 0 || out.source_region < 0 || out.destination < 0 ||
      out.destination_region < 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has a negative rank or region index"));
  }
  out.copies.reserve(transfer.copies_size());
  for (const v1::Copy& copy : transfer.copies()) {
    Copy& to = out.copies.emplace_back();
    to.source_offset = copy.source_offset();
    to.destination_offset = copy.destination_offset();
    to.run = copy.run();
    if (copy.levels_size() > kMaxDims) {
      return absl::InvalidArgumentError(absl::StrCat(what, " has a copy with ", copy.levels_size(),
                                                     " levels; at most ", kMaxDims,
                                                     " are supported"));
    }
    for (const v1::CopyLevel& level : copy.levels()) {
      to.levels.push_back({level.count(), level.source_stride(), level.destination_stride()});
    }
  }
  out.bytes = transfer.bytes();
  XFER_ASSIGN_OR_RETURN(out.conversion.from, FromProto(transfer.from()));
  XFER_ASSIGN_OR_RETURN(out.conversion.to, FromProto(transfer.to()));
  out.waits_for.assign(transfer.waits_for().begin(), transfer.waits_for().end());
  return out;
}

v1::PlanStats ToProto(const PlanStats& stats, size_t transfers) {
  v1::PlanStats out;
  out.set_bytes(stats.bytes);
  out.set_wire_bytes(stats.wire_bytes);
  out.set_busiest_out_bytes(stats.busiest_out_bytes);
  out.set_busiest_in_bytes(stats.busiest_in_bytes);
  out.set_lower_bound_bytes(stats.lower_bound_bytes);
  out.set_transfers(static_cast<uint32_t>(transfers));
  out.set_ratio(stats.ratio());
  return out;
}

}  // namespace xfer
