// Registry: what a sync takes from a job and gives back to it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "coordinator/registry/names.h"
#include "coordinator/registry/registry.h"

namespace xfer {
namespace {
constexpr size_t kMaxListed = 16;
constexpr size_t kMaxReason = 1024;
}  // namespace

absl::StatusOr<SyncInput> Registry::Freeze(const JobData& job,
                                           const std::vector<int32_t>& engines) const {
  SyncInput input;
  input.job = job.info.name();
  input.generation = job.info.generation();
  input.tensors = job.tensors;
  input.transfer_timeout_s = job.spec.transfer_timeout_s;
  input.engines = engines;
  std::sort(input.engines.begin(), input.engines.end());
  input.engines.erase(std::unique(input.engines.begin(), input.engines.end()), input.engines.end());
  const int32_t known = static_cast<int32_t>(job.engines.size());
  if (engines.empty()) {
    for (int32_t e = 0; e < known; ++e) input.engines.push_back(e);
  }
  for (int32_t e : input.engines) {
    if (e >= 0 && e < known) continue;
    return absl::InvalidArgumentError(absl::StrCat("job ", input.job, " has engines 0 to ",
                                                   known - 1, "; ", e, " is not one of them"));
  }
  std::vector<std::string> missing;
  size_t count = 0;
  std::map<std::string, int32_t> nics;
  for (const RankId& id : ExpectedRanks(job, &input.engines)) {
    auto rank = job.ranks.find(id);
    if (rank == job.ranks.end()) {
      ++count;
      if (missing.size() < kMaxListed) missing.push_back(id.ToString());
      continue;
    }
    input.ranks.push_back(rank->second);
    auto node = nodes_.find(rank->second.node);
    nics[rank->second.node] = node == nodes_.end() ? 1 : node->second.nics;
  }
  if (count != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", input.job, ": ", count, " ranks are not registered: ", absl::StrJoin(missing, ", "),
        count > missing.size() ? absl::StrCat(" and ", count - missing.size(), " more") : "",
        "; start them, or wait until they are registered"));
  }
  input.nics.assign(nics.begin(), nics.end());
  for (int32_t e : input.engines) {
    if (job.engines[e].dirty) input.dirty.insert(e);
  }
  return input;
}

absl::StatusOr<SyncInput> Registry::PlanInputOf(const std::string& name,
                                                const std::vector<int32_t>& engines) const {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(const JobData* job, Find(name));
  return Freeze(*job, engines);
}

absl::StatusOr<SyncInput> Registry::BeginSync(const std::string& name,
                                              const std::vector<int32_t>& engines, int64_t version,
                                              uint64_t sync_id) {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(JobData * job, Find(name));
  if (job->info.finished()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " has finished; no sync can start in it"));
  }
  XFER_ASSIGN_OR_RETURN(SyncInput input, Freeze(*job, engines));
  for (int32_t e : input.engines) {
    const uint64_t running = job->engines[e].running_sync;
    if (running == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat("job ", name, ": sync ", running,
                                                      " is running on engine ", e,
                                                      "; wait for its end or cancel it"));
  }
  XFER_ASSIGN_OR_RETURN(input.version, AgreedVersion(*job, version));
  for (int32_t e : input.engines) job->engines[e].running_sync = sync_id;
  Changed(*job);
  return input;
}

std::vector<RankId> Registry::Outdated(const SyncInput& input) const {
  absl::MutexLock lock(&mu_);
  std::vector<RankId> out;
  auto job = jobs_.find(input.job);
  for (const RankEntry& rank : input.ranks) {
    bool current = false;
    if (job != jobs_.end()) {
      auto held = job->second.ranks.find(rank.id);
      current = held != job->second.ranks.end() && held->second.SameRegistration(rank);
    }
    if (!current) out.push_back(rank.id);
  }
  return out;
}

absl::Status Registry::SetEngines(JobData& job, const std::map<int32_t, Engine>& changed) {
  std::vector<StoredEngine> stored;
  for (const auto& [e, engine] : changed) {
    stored.push_back({e, engine.version, engine.dirty, engine.dirty_reason, engine.holders});
  }
  XFER_RETURN_IF_ERROR(store_->SaveEngines(job.info.name(), stored));
  for (const auto& [e, engine] : changed) job.engines[e] = engine;
  Changed(job);
  return absl::OkStatus();
}

absl::Status Registry::MarkDirty(const std::string& name,
                                 const std::map<int32_t, std::string>& reasons) {
  absl::MutexLock lock(&mu_);
  absl::StatusOr<JobData*> job = Find(name);
  if (!job.ok() || reasons.empty()) return absl::OkStatus();
  std::map<int32_t, Engine> changed;
  for (const auto& [e, reason] : reasons) {
    Engine& engine = changed[e] = (*job)->engines[e];
    engine.dirty = true;
    engine.dirty_reason = Shorten(reason, kMaxReason);
  }
  return SetEngines(**job, changed);
}

absl::Status Registry::Commit(const SyncInput& input, int32_t engine) {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(JobData * job, Find(input.job));
  Engine committed = job->engines[engine];
  committed.version = input.version;
  committed.dirty = false;
  committed.dirty_reason.clear();
  committed.holders.clear();
  for (const RankEntry& rank : input.ranks) {
    if (rank.id.role != Role::kRollout || rank.id.engine != engine) continue;
    auto held = job->ranks.find(rank.id);
    if (held == job->ranks.end() || !held->second.SameRegistration(rank)) {
      return absl::FailedPreconditionError(
          absl::StrCat(rank.id.ToString(), " on node ", rank.node,
                       " is no longer registered as it was when the"
                       " sync began; sync again once it is back"));
    }
    committed.holders.push_back({rank.id, rank.node, rank.incarnation, rank.registration_id});
  }
  return SetEngines(*job, {{engine, std::move(committed)}});
}

void Registry::EndSync(const std::string& name, absl::Span<const int32_t> engines,
                       uint64_t sync_id) {
  absl::MutexLock lock(&mu_);
  absl::StatusOr<JobData*> job = Find(name);
  if (!job.ok()) return;
  for (int32_t e : engines) {
    if ((*job)->engines[e].running_sync == sync_id) (*job)->engines[e].running_sync = 0;
  }
  Changed(**job);
}

}  // namespace xfer
