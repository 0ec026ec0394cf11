#include "agent/memory/rank_table.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace xfer {

uint64_t LocalRank::region_bytes() const {
  uint64_t bytes = 0;
  for (const MappedRegion& region : regions_) bytes += region.bytes().size();
  return bytes;
}

absl::StatusOr<RankPin> RankTable::Make(LocalRankInfo info, std::vector<MappedRegion> regions,
                                        int64_t ready_version) {
  // Transports let go of the memory before it is unmapped, that is when the last pin goes.
  struct Deleter {
    std::vector<Transport*> transports;
    void operator()(LocalRank* rank) const {
      for (Transport* transport : transports) {
        for (size_t i = 0; i < rank->regions(); ++i) transport->Unregister(rank->region(i));
      }
      delete rank;
    }
  };
  RankPin rank(new LocalRank(next_id_.fetch_add(1), std::move(info), std::move(regions)),
               Deleter{transports_});
  rank->set_ready_version(ready_version);
  const absl::Time start = absl::Now();
  for (Transport* transport : transports_) {
    for (size_t i = 0; i < rank->regions(); ++i) {
      XFER_RETURN_IF_ERROR(Annotate(transport->Register(rank->region(i)),
                                    absl::StrCat("region ", i, " of ", rank->info().id.ToString(),
                                                 " for transport ", transport->name())));
    }
  }
  rank->memory_time_ = absl::Now() - start;
  return rank;
}

void RankTable::InsertLocked(const RankPin& rank) {
  by_rank_[{rank->info().job, rank->info().id}] = rank;
  by_id_[rank->registration_id()] = rank;
}

RankPin RankTable::RemoveLocked(uint64_t registration_id) {
  auto found = by_id_.find(registration_id);
  if (found == by_id_.end()) return nullptr;
  RankPin rank = std::move(found->second);
  by_id_.erase(found);
  by_rank_.erase({rank->info().job, rank->info().id});
  rank->gone_.store(true, std::memory_order_release);
  return rank;
}

absl::StatusOr<RankPin> RankTable::Add(LocalRankInfo info, std::vector<MappedRegion> regions,
                                       int64_t ready_version) {
  XFER_ASSIGN_OR_RETURN(RankPin rank, Make(std::move(info), std::move(regions), ready_version));
  absl::MutexLock lock(&mu_);
  auto taken = by_rank_.find({rank->info().job, rank->info().id});
  if (taken != by_rank_.end()) {
    return absl::AlreadyExistsError(absl::StrCat(
        rank->info().id.ToString(), " of job ", rank->info().job, " is registered by process ",
        taken->second->info().pid, " on this node; end that process or register another rank"));
  }
  InsertLocked(rank);
  return rank;
}

absl::StatusOr<RankPin> RankTable::Replace(uint64_t old_id, LocalRankInfo info,
                                           std::vector<MappedRegion> regions,
                                           int64_t ready_version) {
  XFER_ASSIGN_OR_RETURN(RankPin rank, Make(std::move(info), std::move(regions), ready_version));
  RankPin old;  // released outside the lock, for it may unmap
  absl::MutexLock lock(&mu_);
  auto found = by_id_.find(old_id);
  if (found == by_id_.end() || found->second->info().job != rank->info().job ||
      found->second->info().id != rank->info().id) {
    return absl::NotFoundError(absl::StrCat("registration ", old_id, " of ",
                                            rank->info().id.ToString(), " of job ",
                                            rank->info().job, " does not exist; register it anew"));
  }
  old = RemoveLocked(old_id);
  InsertLocked(rank);
  return rank;
}

RankPin RankTable::Remove(uint64_t registration_id) {
  absl::MutexLock lock(&mu_);
  return RemoveLocked(registration_id);
}

RankPin RankTable::Find(uint64_t registration_id) const {
  absl::MutexLock lock(&mu_);
  auto found = by_id_.find(registration_id);
  return found == by_id_.end() ? nullptr : found->second;
}

RankPin RankTable::Find(const std::string& job, const RankId& id) const {
  absl::MutexLock lock(&mu_);
  auto found = by_rank_.find({job, id});
  return found == by_rank_.end() ? nullptr : found->second;
}

std::vector<RankPin> RankTable::All() const {
  absl::MutexLock lock(&mu_);
  std::vector<RankPin> all;
  all.reserve(by_rank_.size());
  for (const auto& [key, rank] : by_rank_) all.push_back(rank);
  return all;
}

}  // namespace xfer
