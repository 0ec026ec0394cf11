// absl::Status on both sides of gRPC and inside messages. The only place where the two meet.
#ifndef XFER_COMMON_RPC_STATUS_H_
#define XFER_COMMON_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "xfer/v1/types.pb.h"

namespace xfer {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

v1::Outcome ToOutcome(const absl::Status& status);
absl::Status FromOutcome(const v1::Outcome& outcome);

}  // namespace xfer

#endif  // XFER_COMMON_RPC_STATUS_H_
