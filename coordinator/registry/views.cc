// Registry: what is read out of a job.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "coordinator/registry/registry.h"

namespace xfer {
namespace {
constexpr size_t kMaxListed = 16;
}  // namespace

v1::RankInfo Registry::InfoOf(const RankEntry& rank) {
  v1::RankInfo info;
  *info.mutable_id() = ToProto(rank.id);
  info.set_node(rank.node);
  info.set_pid(rank.pid);
  info.set_registration_id(rank.registration_id);
  uint64_t bytes = 0;
  for (uint64_t region : rank.manifest->region_bytes) bytes += region;
  info.set_registered_bytes(bytes);
  info.set_model_bytes(rank.manifest->bytes());
  info.set_pieces(static_cast<uint32_t>(rank.manifest->pieces.size()));
  info.set_ready_version(rank.ready_version);
  *info.mutable_owner_report() = rank.owner_report;
  return info;
}

std::vector<v1::EngineInfo> Registry::EnginesOf(const JobData& job) {
  std::vector<v1::EngineInfo> out(job.engines.size());
  for (size_t e = 0; e < job.engines.size(); ++e) {
    const Engine& engine = job.engines[e];
    out[e].set_engine(static_cast<int32_t>(e));
    out[e].set_version(engine.version);
    out[e].set_dirty(engine.dirty);
    out[e].set_dirty_reason(engine.dirty_reason);
    out[e].set_ranks_expected(job.spec.rollout.gpus_per_engine);
    out[e].set_running_sync(engine.running_sync);
  }
  for (const auto& [id, rank] : job.ranks) {
    if (id.role == Role::kRollout) out[id.engine].set_ranks(out[id.engine].ranks() + 1);
  }
  return out;
}

// All trainers, then the ranks of `engines` (null: of all), sorted by id.
std::vector<RankId> Registry::ExpectedRanks(const JobData& job,
                                            const std::vector<int32_t>* engines) {
  std::vector<RankId> out;
  for (int32_t r = 0; r < job.spec.train.world; ++r) out.push_back({Role::kTrainer, 0, r});
  for (int32_t e = 0; e < static_cast<int32_t>(job.engines.size()); ++e) {
    if (engines != nullptr && !std::binary_search(engines->begin(), engines->end(), e)) continue;
    for (int32_t r = 0; r < job.spec.rollout.gpus_per_engine; ++r) {
      out.push_back({Role::kRollout, e, r});
    }
  }
  return out;
}

v1::JobState Registry::BuildState(const JobData& job) {
  v1::JobState state;
  *state.mutable_job() = job.info;
  for (const auto& [id, rank] : job.ranks) *state.add_ranks() = InfoOf(rank);
  int32_t missing = 0;
  for (const RankId& id : ExpectedRanks(job, nullptr)) {
    if (job.ranks.contains(id)) continue;
    ++missing;
    if (state.missing_size() < static_cast<int>(kMaxListed)) *state.add_missing() = ToProto(id);
  }
  state.set_missing_count(missing);
  for (v1::EngineInfo& engine : EnginesOf(job)) *state.add_engines() = std::move(engine);
  return state;
}

absl::StatusOr<std::vector<v1::RankInfo>> Registry::ListRanks(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(const JobData* job, Find(name));
  std::vector<v1::RankInfo> out;
  out.reserve(job->ranks.size());
  for (const auto& [id, rank] : job->ranks) out.push_back(InfoOf(rank));
  return out;
}

absl::StatusOr<std::vector<v1::EngineInfo>> Registry::ListEngines(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(const JobData* job, Find(name));
  return EnginesOf(*job);
}

// The version that a sync carries: `version`, or the trainers' where it is 0.
absl::StatusOr<int64_t> Registry::AgreedVersion(const JobData& job, int64_t version) {
  if (version < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version ", version, " is negative"));
  }
  int64_t agreed = version;
  for (const auto& [id, rank] : job.ranks) {
    if (id.role != Role::kTrainer) break;  // trainers come first
    if (agreed == 0) agreed = rank.ready_version;
  }
  std::vector<std::string> different;
  size_t count = 0;
  for (const auto& [id, rank] : job.ranks) {
    if (id.role != Role::kTrainer) break;
    const int64_t ready = rank.ready_version;
    if (ready == agreed && ready != 0) continue;
    if (ready == 0 && version != 0) continue;  // it did not say; the caller did
    ++count;
    if (different.size() < kMaxListed) {
      different.push_back(absl::StrCat(
          id.ToString(), ready == 0 ? " at none" : absl::StrCat(" at version ", ready)));
    }
  }
  if (count == 0) return agreed;
  const std::string list = absl::StrCat(
      absl::StrJoin(different, ", "),
      count > different.size() ? absl::StrCat(" and ", count - different.size(), " more") : "");
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job.info.name(), ": the trainers are not ready at ",
      agreed == 0 ? "any version" : absl::StrCat("version ", agreed), ": ", list,
      "; wait until every trainer has reported it", version == 0 ? " or name the version" : ""));
}

}  // namespace xfer
