// Plans, kept for as long as they may be used again.
#ifndef XFER_COORDINATOR_SYNC_PLAN_CACHE_H_
#define XFER_COORDINATOR_SYNC_PLAN_CACHE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/plan/plan.h"
#include "coordinator/registry/registry.h"

namespace xfer {

// What is needed to name a transfer long after its plan has gone.
struct TransferNames {
  struct Row {
    TensorId tensor = -1;
    int32_t source = 0;       // index into ranks
    int32_t destination = 0;  // index into ranks
  };
  std::vector<Row> transfers;  // by transfer id
  std::vector<RankId> ranks;
  std::shared_ptr<const TensorTable> tensors;

  // Hugging Face name; empty where the id or the tensor is unknown.
  std::string TensorOf(TransferId id) const;
};

// A plan and what the coordinator derives from it. Never changed once made.
struct CachedPlan {
  uint64_t id = 0;
  std::string job;
  Plan plan;                               // plan.generation is the job's
  std::vector<uint64_t> registration_ids;  // by index in plan.ranks
  std::shared_ptr<const TransferNames> names;
  int64_t planning_ns = 0;
  std::set<std::string> nodes;
  std::map<std::string, std::vector<TransferId>>
      transfers_by_node;                                   // source or destination is there
  std::map<std::string, std::set<std::string>> receivers;  // node -> the nodes that it sends to
  std::map<int32_t, std::set<std::string>>
      engine_nodes;  // engine -> nodes that its bytes come from or go to
};

// Thread-safe.
class PlanCache {
 public:
  // `on_forgotten` is called when the last holder of a plan has let go of it, on that holder's
  // thread, without locks of the cache.
  PlanCache(Clock* clock, size_t capacity, std::function<void(const CachedPlan&)> on_forgotten);

  struct Found {
    std::shared_ptr<const CachedPlan> plan;
    bool cached = false;
  };
  // The plan for (job, engines, generation) of `input`, made if it is not there. Errors are those
  // of BuildPlan(), with the job before them.
  absl::StatusOr<Found> Get(const SyncInput& input) ABSL_LOCKS_EXCLUDED(mu_);
  // A plan that is cached or still held by a sync. NotFound states the remedy.
  absl::StatusOr<std::shared_ptr<const CachedPlan>> Find(uint64_t plan_id) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Key {
    std::string job;
    std::vector<int32_t> engines;
    uint64_t generation = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  using Order = std::list<Key>;  // most recently used first
  struct Entry {
    std::shared_ptr<const CachedPlan> plan;
    Order::iterator place;
  };
  absl::StatusOr<std::shared_ptr<const CachedPlan>> Make(const SyncInput& input);

  Clock* const clock_;
  const size_t capacity_;
  const std::function<void(const CachedPlan&)> on_forgotten_;
  mutable absl::Mutex mu_;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_);
  std::map<Key, Entry> plans_ ABSL_GUARDED_BY(mu_);
  Order order_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::weak_ptr<const CachedPlan>> by_id_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SYNC_PLAN_CACHE_H_
