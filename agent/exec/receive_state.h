// The ReceiveTable of this agent: the syncs that may write to memory here.
#ifndef XFER_AGENT_EXEC_RECEIVE_STATE_H_
#define XFER_AGENT_EXEC_RECEIVE_STATE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/sync_receive.h"
#include "agent/transport/transport.h"

namespace xfer {

// Thread-safe.
class ReceiveState final : public ReceiveTable {
 public:
  // From now on the sync's transfers may come. Waits first until no connection of an earlier sync
  // can still write to the same ranks. DeadlineExceeded names the earlier sync. AlreadyExists: it
  // has begun.
  absl::Status Begin(std::shared_ptr<SyncReceive> sync, absl::Time deadline);
  // Nothing new is accepted for the sync. Its memory stays pinned until the last writer has left.
  void End(uint64_t sync_id);

  absl::StatusOr<Target> Enter(const SyncKey& sync, TransferId transfer) override;
  void Leave(const SyncKey& sync, TransferId transfer) override;
  void Arrived(const SyncKey& sync, TransferId transfer, uint64_t begin, uint64_t end) override;
  absl::Status Finished(const SyncKey& sync, TransferId transfer, uint64_t digest) override;

 private:
  // Null for an unknown sync and for a wrong secret.
  std::shared_ptr<SyncReceive> Find(const SyncKey& key);
  // An ended sync that may still write where `sync` does; 0: none.
  uint64_t StaleWriter(const SyncReceive& sync) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  absl::CondVar left_;  // an ended sync has gone
  absl::flat_hash_map<uint64_t, std::shared_ptr<SyncReceive>> syncs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_RECEIVE_STATE_H_
