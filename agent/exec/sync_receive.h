// The receiving side of one sync on this node.
#ifndef XFER_AGENT_EXEC_SYNC_RECEIVE_H_
#define XFER_AGENT_EXEC_SYNC_RECEIVE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/plan_part.h"
#include "agent/exec/sync_failures.h"
#include "agent/transport/transport.h"
#include "common/base/clock.h"

namespace xfer {

// What one destination rank has received. Moments are this host's monotonic nanoseconds; 0: none.
struct ReceivedByRank {
  int32_t rank = 0;  // index into the plan's ranks
  uint64_t bytes = 0;
  uint32_t transfers = 0;
  uint32_t expected = 0;
  int64_t first_ns = 0;
  int64_t last_ns = 0;
  int64_t digest_ns = 0;
  std::map<std::string, uint64_t> bytes_by_transport;
};

// Accounts for what arrives: a transfer is done when Finished() found every byte and the same
// digest.
//
// A transfer may be sent again after its connection broke. There is no message for that, and none
// is needed: arrivals are kept as a map of disjoint ranges with a digest each, and a range that
// arrives again takes the place of what it covers. Since a repeated transfer is repeated whole,
// what stands at its end is what its last attempt has put there. Thread-safe.
class SyncReceive {
 public:
  struct Options {
    SyncKey key;
    v1::Verify verify = v1::VERIFY_FULL;
    std::shared_ptr<const PlanPart> part;
    std::vector<RankPin> pins;  // by rank index
    std::shared_ptr<SyncFailures> failures;
    std::function<void()> on_change;  // the last transfer of a rank is done, or the last writer
                                      // left; with relays after each transfer
    Clock* clock = Clock::Real();     // borrowed
  };
  explicit SyncReceive(Options options);

  const SyncKey& key() const { return options_.key; }

  // As of ReceiveTable.
  absl::StatusOr<ReceiveTable::Target> Enter(TransferId id);
  void Leave();
  void Arrived(TransferId id, uint64_t begin, uint64_t end);
  // `transport`: the name of the one that brought it.
  absl::Status Finished(TransferId id, uint64_t digest, absl::string_view transport);

  // Refuses every Enter() from now on.
  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }
  // Close(), for good: the sync is over.
  void End() {
    Close();
    ended_.store(true);
  }
  bool ended() const { return ended_.load(); }
  // Entered and not left.
  int64_t writers() const { return writers_.load(); }
  // Whether the two syncs write to a common registration.
  bool Overlaps(const SyncReceive& other) const;

  // By index into the part's transfers.
  bool Done(uint32_t transfer) const {
    return states_[transfer].done.load(std::memory_order_acquire);
  }
  // Grows with each transfer that is done.
  uint64_t arrivals() const { return arrivals_.load(std::memory_order_acquire); }
  // Every destination rank has all of its transfers, or its engine has failed.
  bool Settled() const;
  // OK where destination rank `rank` (an index) has all of its transfers.
  absl::Status Complete(int32_t rank) const;
  // Fails the ranks for which nothing has arrived for `limit` and that still expect something.
  void FailStalled(absl::Duration limit);
  // Fails the ranks that still expect something.
  void FailMissing(const absl::Status& cause);
  // The stall clock starts now.
  void Start();

  uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }
  std::vector<ReceivedByRank> Totals() const;  // of the destination ranks on this node

 private:
  struct Range {
    uint64_t end = 0;
    uint64_t digest = 0;
  };
  struct State {
    std::atomic<bool> done{false};
    absl::Mutex mu;
    absl::btree_map<uint64_t, Range> ranges ABSL_GUARDED_BY(mu);  // by begin; disjoint
    uint64_t covered ABSL_GUARDED_BY(mu) = 0;
  };
  struct Rank {
    ReceivedByRank totals;  // guarded by totals_mu_
    std::atomic<uint32_t> missing{0};
    std::atomic<int64_t> progress_ns{0};
    std::atomic<int64_t> digest_ns{0};
    std::atomic<int64_t> first_ns{0};
  };

  absl::StatusOr<uint32_t> Expected(TransferId id) const;
  uint64_t Digest(uint32_t transfer, uint64_t begin, uint64_t end);
  void Insert(uint32_t transfer, State& state, uint64_t begin, uint64_t end, uint64_t digest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);
  absl::Status Check(uint32_t transfer, uint64_t digest);
  void MarkDone(uint32_t transfer, absl::string_view transport);
  // "3 of 80 transfers to engine 0 rank 1 are missing", and the first of them.
  std::string Missing(const Rank& rank, uint32_t* first) const;
  bool Writes(const RankPin& pin) const;

  const Options options_;
  std::vector<State> states_;  // by index into the part's transfers
  std::vector<Rank> ranks_;    // by rank index; used for destinations here
  std::atomic<bool> closed_{false};
  std::atomic<bool> ended_{false};
  std::atomic<int64_t> writers_{0};
  std::atomic<uint64_t> arrivals_{0};
  std::atomic<uint64_t> bytes_done_{0};
  mutable absl::Mutex totals_mu_;
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_SYNC_RECEIVE_H_
