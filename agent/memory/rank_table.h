// The ranks that are registered on this node.
#ifndef XFER_AGENT_MEMORY_RANK_TABLE_H_
#define XFER_AGENT_MEMORY_RANK_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/memory/mapped_region.h"
#include "agent/transport/transport.h"
#include "common/plan/plan.h"

namespace xfer {

// What a rank is when it registers.
struct LocalRankInfo {
  std::string job;
  RankId id;
  int64_t pid = 0;
  int32_t nic = 0;
  uint64_t model_bytes = 0;  // of its pieces
  uint32_t pieces = 0;
  // Its pieces as serialised v1::ManifestPart messages without a header: they are kept only to be
  // published again, and take a fraction of the memory in this form.
  std::vector<std::string> manifest;
};

// One registration. Whoever holds a pointer to it (a pin) keeps its memory mapped, also after it
// was removed from the table. Immutable but for the atomics; thread-safe.
class LocalRank {
 public:
  LocalRank(uint64_t registration_id, LocalRankInfo info, std::vector<MappedRegion> regions)
      : registration_id_(registration_id), info_(std::move(info)), regions_(std::move(regions)) {}

  uint64_t registration_id() const { return registration_id_; }
  const LocalRankInfo& info() const { return info_; }
  size_t regions() const { return regions_.size(); }
  Memory region(size_t index) const {
    return {regions_[index].bytes().data(), regions_[index].bytes().size()};
  }
  uint64_t region_bytes() const;  // of all regions
  // How long the transports took to register the memory.
  absl::Duration memory_time() const { return memory_time_; }

  // True once it was removed: nothing new may be written to or read from it.
  bool gone() const { return gone_.load(std::memory_order_acquire); }
  // Trainers: version of the weights; 0: not said.
  int64_t ready_version() const { return ready_version_.load(std::memory_order_relaxed); }
  void set_ready_version(int64_t version) {
    ready_version_.store(version, std::memory_order_relaxed);
  }

 private:
  friend class RankTable;
  const uint64_t registration_id_;
  const LocalRankInfo info_;
  const std::vector<MappedRegion> regions_;
  absl::Duration memory_time_;  // constant once the rank is in the table
  std::atomic<bool> gone_{false};
  std::atomic<int64_t> ready_version_{0};
};
using RankPin = std::shared_ptr<LocalRank>;

// Thread-safe.
class RankTable {
 public:
  // Registration ids start at `first_id`; make it random, so that those of an earlier process on
  // this node do not come again. Regions are announced to `transports` (borrowed; outlive every
  // pin).
  RankTable(uint64_t first_id, std::vector<Transport*> transports)
      : transports_(std::move(transports)), next_id_(first_id) {}

  // AlreadyExists names the process that holds this rank; a transport's refusal of the memory is
  // passed on.
  absl::StatusOr<RankPin> Add(LocalRankInfo info, std::vector<MappedRegion> regions,
                              int64_t ready_version);
  // As Add(), in the place of registration `old_id`, which is then gone. NotFound: there is no such
  // one, or it is of another rank.
  absl::StatusOr<RankPin> Replace(uint64_t old_id, LocalRankInfo info,
                                  std::vector<MappedRegion> regions, int64_t ready_version);
  // Out of view at once; unmapped when the last pin goes. Null where there is no such registration.
  RankPin Remove(uint64_t registration_id);

  RankPin Find(uint64_t registration_id) const;  // null: none
  RankPin Find(const std::string& job, const RankId& id) const;
  std::vector<RankPin> All() const;  // sorted by job and id

 private:
  using Key = std::pair<std::string, RankId>;
  absl::StatusOr<RankPin> Make(LocalRankInfo info, std::vector<MappedRegion> regions,
                               int64_t ready_version);
  void InsertLocked(const RankPin& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RankPin RemoveLocked(uint64_t registration_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<Transport*> transports_;
  std::atomic<uint64_t> next_id_;
  mutable absl::Mutex mu_;
  absl::btree_map<Key, RankPin> by_rank_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, RankPin> by_id_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_MEMORY_RANK_TABLE_H_
