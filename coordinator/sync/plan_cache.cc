#include "coordinator/sync/plan_cache.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/plan/planner.h"

namespace xfer {
namespace {

// Agents keep plans by id across sessions; ids of another life of the coordinator must not match.
uint64_t FirstPlanId() {
  absl::BitGen gen;
  return (absl::Uniform<uint64_t>(gen, 1, uint64_t{1} << 31) << 32) + 1;
}

void Derive(const SyncInput& input, CachedPlan& cached) {
  const Plan& plan = cached.plan;
  std::map<RankId, uint64_t> registrations;
  for (const RankEntry& rank : input.ranks) registrations[rank.id] = rank.registration_id;
  auto names = std::make_shared<TransferNames>();
  names->tensors = input.tensors;
  for (const PlanRank& rank : plan.ranks) {
    cached.registration_ids.push_back(registrations[rank.id]);
    names->ranks.push_back(rank.id);
    cached.nodes.insert(rank.node);
    if (rank.id.role == Role::kRollout) cached.engine_nodes[rank.id.engine].insert(rank.node);
  }
  names->transfers.reserve(plan.transfers.size());
  for (const Transfer& t : plan.transfers) {
    names->transfers.push_back({t.tensor, t.source, t.destination});
    const PlanRank& source = plan.ranks[t.source];
    const PlanRank& destination = plan.ranks[t.destination];
    cached.transfers_by_node[source.node].push_back(t.id);
    if (destination.node != source.node) {
      cached.transfers_by_node[destination.node].push_back(t.id);
    }
    cached.receivers[source.node].insert(destination.node);
    cached.engine_nodes[destination.id.engine].insert(source.node);
  }
  cached.names = std::move(names);
}

}  // namespace

std::string TransferNames::TensorOf(TransferId id) const {
  if (id >= transfers.size()) return "";
  const TensorId tensor = transfers[id].tensor;
  if (tensor < 0 || tensor >= tensors->size()) return "";
  return (*tensors)[tensor].name;
}

PlanCache::PlanCache(Clock* clock, size_t capacity,
                     std::function<void(const CachedPlan&)> on_forgotten)
    : clock_(clock),
      capacity_(capacity),
      on_forgotten_(std::move(on_forgotten)),
      next_id_(FirstPlanId()) {}

absl::StatusOr<std::shared_ptr<const CachedPlan>> PlanCache::Make(const SyncInput& input) {
  const int64_t start = clock_->MonotonicNanos();
  PlanInput plan_input;
  plan_input.generation = input.generation;
  plan_input.tensors = input.tensors.get();
  plan_input.nics = input.nics;
  for (const RankEntry& rank : input.ranks) {
    auto& side = rank.id.role == Role::kTrainer ? plan_input.sources : plan_input.destinations;
    side.push_back({PlanRank{rank.id, rank.node, rank.nic}, rank.manifest.get()});
  }
  absl::StatusOr<Plan> plan = BuildPlan(plan_input);
  if (!plan.ok()) return Annotate(plan.status(), absl::StrCat("planning for job ", input.job));
  auto cached = std::make_unique<CachedPlan>();
  cached->job = input.job;
  cached->plan = *std::move(plan);
  Derive(input, *cached);
  cached->planning_ns = clock_->MonotonicNanos() - start;
  {
    absl::MutexLock lock(&mu_);
    cached->id = next_id_++;
  }
  spdlog::info("job {}: plan {} for engines {} at generation {}: {} transfers, {} bytes, {} ms",
               input.job, cached->id, absl::StrJoin(input.engines, ","), input.generation,
               cached->plan.transfers.size(), cached->plan.stats.bytes,
               cached->planning_ns / 1'000'000);
  return std::shared_ptr<const CachedPlan>(cached.release(),
                                           [on_forgotten = on_forgotten_](const CachedPlan* done) {
                                             if (on_forgotten) on_forgotten(*done);
                                             delete done;
                                           });
}

absl::StatusOr<PlanCache::Found> PlanCache::Get(const SyncInput& input) {
  const Key key{input.job, input.engines, input.generation};
  {
    absl::MutexLock lock(&mu_);
    auto it = plans_.find(key);
    if (it != plans_.end()) {
      order_.splice(order_.begin(), order_, it->second.place);
      return Found{it->second.plan, true};
    }
  }
  XFER_ASSIGN_OR_RETURN(std::shared_ptr<const CachedPlan> made, Make(input));
  // Released after the lock: the last holder's release runs on_forgotten.
  std::vector<std::shared_ptr<const CachedPlan>> released;
  absl::MutexLock lock(&mu_);
  if (auto it = plans_.find(key); it != plans_.end()) {  // made by another caller meanwhile
    released.push_back(std::move(made));
    return Found{it->second.plan, false};
  }
  const auto drop = [&](std::map<Key, Entry>::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    released.push_back(std::move(it->second.plan));
    order_.erase(it->second.place);
    return plans_.erase(it);
  };
  // Older generations of a job are never asked for again.
  for (auto it = plans_.begin(); it != plans_.end();) {
    it = it->first.job == key.job && it->first.generation < key.generation ? drop(it)
                                                                           : std::next(it);
  }
  while (!order_.empty() && plans_.size() >= capacity_) drop(plans_.find(order_.back()));
  order_.push_front(key);
  plans_[key] = {made, order_.begin()};
  absl::erase_if(by_id_, [](const auto& entry) { return entry.second.expired(); });
  by_id_[made->id] = made;
  return Found{std::move(made), false};
}

absl::StatusOr<std::shared_ptr<const CachedPlan>> PlanCache::Find(uint64_t plan_id) const {
  absl::MutexLock lock(&mu_);
  auto it = by_id_.find(plan_id);
  std::shared_ptr<const CachedPlan> plan = it == by_id_.end() ? nullptr : it->second.lock();
  if (plan != nullptr) return plan;
  return absl::NotFoundError(
      absl::StrCat("plan ", plan_id, " is not held any more; start the sync again"));
}

}  // namespace xfer
