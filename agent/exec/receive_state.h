// The ReceiveTable of this agent: the syncs that may write to memory here.
#ifndef XFER_AGENT_EXEC_RECEIVE_STATE_H_
#define XFER_AGENT_EXEC_RECEIVE_STATE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/sync_receive.h"
#include "agent/transport/transport.h"

namespace xfer {

// Thread-safe.
class ReceiveState {
 public:
  ReceiveState() = default;
  ReceiveState(const ReceiveState&) = delete;
  ReceiveState& operator=(const ReceiveState&) = delete;

  // The table as a transport is given it, so that timings can say which one brought the bytes. It
  // lives as long as this object. `transport` is a literal, or as long-lived.
  ReceiveTable* For(absl::string_view transport);

  // From now on the sync's transfers may come. Waits first until no connection of an earlier sync
  // can still write to the same ranks. DeadlineExceeded names the earlier sync. AlreadyExists: it
  // has begun.
  absl::Status Begin(std::shared_ptr<SyncReceive> sync, absl::Time deadline);
  // Nothing new is accepted for the sync. Its memory stays pinned until the last writer has left.
  void End(uint64_t sync_id);

 private:
  class View;
  void Leave(const SyncKey& sync);
  // Null for an unknown sync and for a wrong secret.
  std::shared_ptr<SyncReceive> Find(const SyncKey& key);
  // An ended sync that may still write where `sync` does; 0: none.
  uint64_t StaleWriter(const SyncReceive& sync) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  std::vector<std::unique_ptr<ReceiveTable>> views_ ABSL_GUARDED_BY(mu_);
  absl::CondVar left_;  // an ended sync has gone
  absl::flat_hash_map<uint64_t, std::shared_ptr<SyncReceive>> syncs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_RECEIVE_STATE_H_
