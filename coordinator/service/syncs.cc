#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/watch.h"

namespace xfer {
namespace {
constexpr int32_t kDefaultListed = 50;
}  // namespace

grpc::Status CoordinatorService::TriggerSync(grpc::ServerContext*,
                                             const v1::TriggerSyncRequest* request,
                                             v1::TriggerSyncReply* reply) {
  const absl::StatusOr<uint64_t> id = state_->syncs.Trigger(*request);
  if (!id.ok()) return ToGrpc(id.status());
  reply->set_sync_id(*id);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetSync(grpc::ServerContext*, const v1::GetSyncRequest* request,
                                         v1::Sync* reply) {
  const auto record = state_->syncs.history().Find(request->sync_id());
  if (!record.ok()) return ToGrpc(record.status());
  *reply = (*record)->Snapshot();
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::ListSyncs(grpc::ServerContext*,
                                           const v1::ListSyncsRequest* request,
                                           v1::ListSyncsReply* reply) {
  if (request->limit() < 0) {
    return ToGrpc(absl::InvalidArgumentError(
        absl::StrCat("limit ", request->limit(), " is negative; 0 means ", kDefaultListed)));
  }
  const int32_t limit = request->limit() == 0 ? kDefaultListed : request->limit();
  for (const auto& record : state_->syncs.history().List(request->job(), limit)) {
    *reply->add_syncs() = record->Snapshot();
  }
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::CancelSync(grpc::ServerContext* context,
                                            const v1::CancelSyncRequest* request, v1::Sync* reply) {
  if (request->sync_id() == 0) {  // "the newest" may be another one by the time it arrives
    return ToGrpc(absl::InvalidArgumentError("sync 0 is none: name the sync to cancel"));
  }
  absl::StatusOr<v1::Sync> sync = state_->syncs.Cancel(
      request->sync_id(),
      absl::CancelledError(absl::StrCat("cancelled on request of ", context->peer())));
  if (!sync.ok()) return ToGrpc(sync.status());
  *reply = *std::move(sync);
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::Sync>* CoordinatorService::WatchSync(
    grpc::CallbackServerContext*, const v1::WatchSyncRequest* request) {
  absl::StatusOr<std::shared_ptr<SyncRecord>> found =
      state_->syncs.history().Find(request->sync_id());
  const std::shared_ptr<SyncRecord> record = found.ok() ? *found : nullptr;
  const absl::Status missing = found.status();
  return Watch<v1::Sync>::Start({
      [record](Notifier::Callback changed) -> std::function<void()> {
        if (record == nullptr) return [] {};
        const uint64_t id = record->watchers().Add(std::move(changed));
        return [record, id] { record->watchers().Remove(id); };
      },
      [record, missing]() -> absl::StatusOr<std::shared_ptr<const v1::Sync>> {
        if (record == nullptr) return missing;
        return std::make_shared<const v1::Sync>(record->Snapshot());
      },
      [](const v1::Sync& sync) { return sync.state() != v1::SYNC_STATE_RUNNING; },
  });
}

}  // namespace xfer
