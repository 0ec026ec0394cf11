#include "common/rpc/status.h"

#include <string>

namespace xfer {

// The numbers of absl::StatusCode, grpc::StatusCode and google.rpc.Code are the same by design.
grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

v1::Outcome ToOutcome(const absl::Status& status) {
  v1::Outcome outcome;
  outcome.set_code(static_cast<int>(status.code()));
  outcome.set_message(std::string(status.message()));
  return outcome;
}

absl::Status FromOutcome(const v1::Outcome& outcome) {
  return absl::Status(static_cast<absl::StatusCode>(outcome.code()), outcome.message());
}

}  // namespace xfer
