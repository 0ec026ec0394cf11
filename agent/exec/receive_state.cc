#include "agent/exec/receive_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

// The same words for an unknown sync, transfer or secret: a stranger learns nothing.
constexpr char kUnknown[] = "no such transfer is expected here";

}  // namespace

uint64_t ReceiveState::StaleWriter(const SyncReceive& sync) const {
  for (const auto& [id, other] : syncs_) {
    if (id != sync.key().sync_id && other->ended() && other->writers() > 0 &&
        other->Overlaps(sync)) {
      return id;
    }
  }
  return 0;
}

absl::Status ReceiveState::Begin(std::shared_ptr<SyncReceive> sync, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  while (const uint64_t stale = StaleWriter(*sync)) {
    if (left_.WaitWithDeadline(&mu_, deadline) && StaleWriter(*sync) != 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("a broken connection of sync ", stale, " may still write to ranks of sync ",
                       sync->key().sync_id,
                       "; it is given up within half a minute, then trigger the sync again"));
    }
  }
  if (!syncs_.try_emplace(sync->key().sync_id, sync).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("sync ", sync->key().sync_id, " has begun on this node already"));
  }
  return absl::OkStatus();
}

void ReceiveState::End(uint64_t sync_id) {
  std::shared_ptr<SyncReceive> ended;  // released outside the lock, for its pins may unmap
  absl::MutexLock lock(&mu_);
  auto found = syncs_.find(sync_id);
  if (found == syncs_.end()) return;
  found->second->End();
  if (found->second->writers() > 0) return;
  ended = std::move(found->second);
  syncs_.erase(found);
}

std::shared_ptr<SyncReceive> ReceiveState::Find(const SyncKey& key) {
  absl::ReaderMutexLock lock(&mu_);
  auto found = syncs_.find(key.sync_id);
  if (found == syncs_.end() || found->second->key() != key) return nullptr;
  return found->second;
}

class ReceiveState::View final : public ReceiveTable {
 public:
  View(ReceiveState* state, absl::string_view transport) : state_(state), transport_(transport) {}

  absl::StatusOr<Target> Enter(const SyncKey& sync, TransferId transfer) override {
    const std::shared_ptr<SyncReceive> found = state_->Find(sync);
    if (found == nullptr) return absl::NotFoundError(kUnknown);
    return found->Enter(transfer);
  }
  void Leave(const SyncKey& sync, TransferId) override { state_->Leave(sync); }
  void Arrived(const SyncKey& sync, TransferId transfer, uint64_t begin, uint64_t end) override {
    if (const auto found = state_->Find(sync)) found->Arrived(transfer, begin, end);
  }
  absl::Status Finished(const SyncKey& sync, TransferId transfer, uint64_t digest) override {
    const std::shared_ptr<SyncReceive> found = state_->Find(sync);
    if (found == nullptr) return absl::NotFoundError(kUnknown);
    return found->Finished(transfer, digest, transport_);
  }

 private:
  ReceiveState* const state_;
  const absl::string_view transport_;
};

ReceiveTable* ReceiveState::For(absl::string_view transport) {
  absl::MutexLock lock(&mu_);
  return views_.emplace_back(std::make_unique<View>(this, transport)).get();
}

void ReceiveState::Leave(const SyncKey& sync) {
  const std::shared_ptr<SyncReceive> found = Find(sync);
  if (found == nullptr) return;
  found->Leave();
  if (!found->closed() || found->writers() > 0) return;
  absl::MutexLock lock(&mu_);
  // Once closed and without writers a sync stays so; a closed one without End() waits for it.
  left_.SignalAll();
  auto same = syncs_.find(sync.sync_id);
  if (same != syncs_.end() && same->second == found && found->ended()) syncs_.erase(same);
}

}  // namespace xfer
