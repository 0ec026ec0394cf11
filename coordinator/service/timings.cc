#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "coordinator/service/coordinator_service.h"

namespace xfer {
namespace {
constexpr int kBatch = 1000;
}  // namespace

grpc::Status CoordinatorService::GetTimings(grpc::ServerContext*,
                                            const v1::GetTimingsRequest* request,
                                            grpc::ServerWriter<v1::TimingsPart>* writer) {
  const auto record = state_->syncs.history().Find(request->sync_id());
  if (!record.ok()) return ToGrpc(record.status());
  if (!(*record)->ended()) {
    return ToGrpc(absl::FailedPreconditionError(absl::StrCat(
        "sync ", (*record)->id(), " is still running; its timings come with its end")));
  }
  v1::TimingsPart part;
  *part.mutable_sync() = (*record)->Snapshot();
  if (!writer->Write(part) || !request->transfers()) return grpc::Status::OK;
  part.Clear();
  for (v1::TransferTiming& timing : (*record)->Timings()) {
    *part.add_transfers() = std::move(timing);
    if (part.transfers_size() < kBatch) continue;
    if (!writer->Write(part)) return grpc::Status::OK;  // the caller has gone
    part.Clear();
  }
  if (part.transfers_size() > 0) writer->Write(part);
  return grpc::Status::OK;
}

}  // namespace xfer
