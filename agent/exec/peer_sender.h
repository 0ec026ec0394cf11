// Sends a sync's transfers over one endpoint.
#ifndef XFER_AGENT_EXEC_PEER_SENDER_H_
#define XFER_AGENT_EXEC_PEER_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "agent/exec/plan_part.h"
#include "agent/exec/send_ledger.h"
#include "agent/exec/sync_failures.h"
#include "agent/exec/sync_receive.h"
#include "agent/transport/transport.h"
#include "common/base/clock.h"

namespace xfer {

// What all senders of a sync share.
struct SendJob {
  SyncKey key;
  v1::Verify verify = v1::VERIFY_FULL;
  std::shared_ptr<const PlanPart> part;
  std::vector<RankPin> pins;  // by rank index; keeps the source memory mapped
  std::shared_ptr<SyncFailures> failures;
  std::shared_ptr<const SyncReceive> receive;  // knows of the arrivals that transfers wait for
  std::shared_ptr<SendLedger> ledger;
  uint64_t chunk_bytes = 1 << 20;      // a multiple of kDigestLeafBytes
  uint64_t inflight_bytes = 32 << 20;  // posted and not completed, an endpoint
  int max_reconnects = 2;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Notification stop;       // nothing more may be sent
  Clock* clock = Clock::Real();  // borrowed
};

// Sends its transfers round-robin over their destination ranks, a chunk at a time, each digested as
// it is posted. A transfer is done when its finish is acknowledged. When the endpoint breaks, all
// transfers that are not done are sent again from their start over a new one.
//
// A state machine that a pool's threads run by turns; used by one thread at a time.
class PeerSender {
 public:
  using Connect = std::function<absl::StatusOr<std::unique_ptr<Endpoint>>(absl::Time deadline)>;
  enum class State {
    kMore,    // the time was up; run it again
    kParked,  // nothing to do until a transfer arrives here or fails
    kDone,    // every transfer was acknowledged or has failed
  };

  // `transfers`: indices into the part's, all to one peer. `connect` opens a new endpoint to it.
  // `transport` is a literal or as long-lived. `stagger` turns the order of the destination ranks,
  // so that not all nodes begin with the same one.
  PeerSender(std::shared_ptr<SendJob> job, const char* transport,
             std::unique_ptr<Endpoint> endpoint, Connect connect,
             const std::vector<uint32_t>& transfers, size_t stagger);

  // Works for about `quantum`.
  State Run(absl::Duration quantum);

  // When done: the endpoint, if it is as good as new; else null.
  std::unique_ptr<Endpoint> TakeEndpoint();

 private:
  // The transfers to one destination rank.
  struct Queue {
    int32_t rank = 0;
    std::deque<uint32_t> ready;
    std::vector<uint32_t> waiting;  // for arrivals
    bool told = false;              // that its engine has failed
  };
  // A transfer of which something was posted.
  struct Active {
    uint32_t transfer = 0;
    uint64_t next = 0;  // stream bytes posted
    uint64_t digest = 0;
    uint32_t outstanding = 0;  // ranges
    bool finish_posted = false;
    bool finish_done = false;
    int64_t start_ns = 0;
  };
  // A chunk that is to be posted next.
  struct Chunk {
    uint64_t end = 0;
    uint64_t digest = 0;
    std::unique_ptr<std::byte[]> staging;  // converted bytes; null: straight from the source
  };

  const PartTransfer& PartOf(const Active& active) const {
    return job_->part->transfers[active.transfer];
  }
  bool Failed(const Active& active) const {
    return job_->failures->Failed(PartOf(active).planned.destination);
  }
  bool Idle() const { return active_.empty() && told_outstanding_ == 0; }
  bool QueuesEmpty() const;
  bool NothingReady() const;
  Queue& QueueOf(int32_t rank);

  // Moves what waited for arrivals to the ready ones.
  void WakeWaiting();
  bool Arrived(uint32_t transfer);
  // Makes a ready transfer the current one; false: there is none.
  bool PickNext();
  // Posts until the endpoint or a limit says stop. An error is the endpoint's end.
  absl::Status Post();
  // True: something was posted, go on.
  absl::StatusOr<bool> PostNext();
  absl::StatusOr<bool> PostChunk();
  absl::StatusOr<bool> PostFinish(uint64_t digest);
  bool PrepareChunk();
  // Lets receivers know that the rest of a failed engine will not come: a finish without its bytes.
  absl::StatusOr<bool> TellFailed();
  void Complete(const Completion& completion);
  // After the endpoint's end: a new one, or the end of all that is left.
  void Recover(absl::Status cause);
  void Requeue();
  void FailRest(const absl::Status& cause);

  const std::shared_ptr<SendJob> job_;
  const char* const transport_;
  std::unique_ptr<Endpoint> endpoint_;
  const Connect connect_;
  std::vector<Queue> queues_;
  size_t turn_ = 0;  // queue that is served next
  // Pointer-stable: current_ points into it.
  absl::flat_hash_map<TransferId, std::unique_ptr<Active>> active_;
  Active* current_ = nullptr;      // transfer that chunks are being posted of
  Chunk chunk_;                    // of current_; end == 0: none is prepared
  uint64_t in_flight_ = 0;         // bytes
  uint32_t told_outstanding_ = 0;  // finishes that only tell of a failure
  uint64_t arrivals_seen_ = 0;
  int reconnects_ = 0;
  std::vector<Completion> completions_;              // scratch
  absl::flat_hash_map<uint32_t, uint32_t> retries_;  // by transfer
  absl::flat_hash_map<std::pair<TransferId, uint64_t>, std::unique_ptr<std::byte[]>> staged_;
  std::vector<std::unique_ptr<std::byte[]>> free_staging_;
  size_t staging_made_ = 0;
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_PEER_SENDER_H_
