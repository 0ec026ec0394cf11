// Messages <-> common types. What comes from a message is checked here for form (known enums, ranks
// of boxes, non-negative counts); whether it fits a region is checked by CheckTransfer() and
// BuildManifest().
#ifndef XFER_COMMON_RPC_CONVERT_H_
#define XFER_COMMON_RPC_CONVERT_H_

#include "absl/status/statusor.h"
#include "common/layout/manifest.h"
#include "common/plan/plan.h"
#include "xfer/v1/types.pb.h"

namespace xfer {

v1::DType ToProto(DType dtype);
absl::StatusOr<DType> FromProto(v1::DType dtype);

v1::RankId ToProto(const RankId& id);
absl::StatusOr<RankId> FromProto(const v1::RankId& id);

v1::TensorPlacement ToProto(const TensorPlacement& placement);
absl::StatusOr<TensorPlacement> FromProto(const v1::TensorPlacement& placement);

v1::Piece ToProto(const Piece& piece);
absl::StatusOr<Piece> FromProto(const v1::Piece& piece);

v1::Transfer ToProto(const Transfer& transfer);
absl::StatusOr<Transfer> FromProto(const v1::Transfer& transfer);

v1::PlanStats ToProto(const PlanStats& stats, size_t transfers);

}  // namespace xfer

#endif  // XFER_COMMON_RPC_CONVERT_H_
