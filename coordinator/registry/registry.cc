#include "coordinator/registry/registry.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "coordinator/registry/names.h"

namespace xfer {
namespace {

constexpr size_t kMaxJobs = 1000;
constexpr size_t kMaxSpecBytes = 4 << 20;
// At most twenty states a second for each watcher.
constexpr absl::Duration kFeedInterval = absl::Milliseconds(50);

}  // namespace

Registry::Registry(RankGone on_rank_gone, Store* store)
    : on_rank_gone_(std::move(on_rank_gone)), store_(store), feed_(kFeedInterval) {}

absl::Status Registry::Restore() {
  XFER_ASSIGN_OR_RETURN(const std::vector<StoredJob> jobs, store_->Jobs());
  for (const StoredJob& job : jobs) {
    XFER_RETURN_IF_ERROR(
        Annotate(RestoreJob(job), absl::StrCat("the stored job ", job.info.name(),
                                               " cannot be taken up (take another --state, or the "
                                               "version of xfer that made it)")));
  }
  return absl::OkStatus();
}

absl::Status Registry::RestoreJob(const StoredJob& stored) {
  XFER_ASSIGN_OR_RETURN(ModelSpec spec, ParseModelSpec(stored.info.spec_json()));
  XFER_ASSIGN_OR_RETURN(TensorTable tensors, BuildTensorTable(spec.config));
  absl::MutexLock lock(&mu_);
  JobData& job = jobs_[stored.info.name()];
  job.info = stored.info;
  job.engines.resize(spec.rollout.engines());
  job.spec = std::move(spec);
  job.tensors = std::make_shared<const TensorTable>(std::move(tensors));
  for (const StoredEngine& from : stored.engines) {
    if (from.engine < 0 || static_cast<size_t>(from.engine) >= job.engines.size()) {
      return absl::DataLossError(
          absl::StrCat("it has no engine ", from.engine, ", which the state names"));
    }
    Engine& engine = job.engines[from.engine];
    engine.version = from.version;
    engine.dirty = from.dirty;
    engine.dirty_reason = from.dirty_reason;
    engine.holders = from.ranks;
  }
  Changed(job);
  spdlog::info("job {}: taken up from the state, model {}, {} trainers, {} engines{}",
               job.info.name(), job.spec.name, job.spec.train.world, job.engines.size(),
               job.info.finished() ? ", finished" : "");
  return absl::OkStatus();
}

absl::StatusOr<const Registry::JobData*> Registry::Find(const std::string& name) const {
  auto it = jobs_.find(name);
  if (it != jobs_.end()) return &it->second;
  std::vector<std::string> known;
  for (const auto& [job_name, job] : jobs_) {
    if (known.size() == 16) break;
    known.push_back(job_name);
  }
  return absl::NotFoundError(
      absl::StrCat("no job \"", Shorten(name, 64), "\"; ",
                   known.empty() ? "there is none yet: create it first"
                                 : absl::StrCat("known: ", absl::StrJoin(known, ", "))));
}

absl::StatusOr<Registry::JobData*> Registry::Find(const std::string& name) {
  XFER_ASSIGN_OR_RETURN(const JobData* job, static_cast<const Registry*>(this)->Find(name));
  return const_cast<JobData*>(job);
}

void Registry::Changed(JobData& job) {
  job.state.reset();
  feed_.MarkChanged(job.info.name());
}

void Registry::Tell(const std::vector<Gone>& gone) const {
  for (const Gone& g : gone) {
    spdlog::info("job {}: {} on node {} is gone: {}", g.job, g.rank.id.ToString(), g.rank.node,
                 g.reason);
    if (on_rank_gone_) on_rank_gone_(g.job, g.rank, g.reason);
  }
}

absl::StatusOr<v1::Job> Registry::CreateJob(const std::string& name, const std::string& spec_json) {
  XFER_RETURN_IF_ERROR(CheckName("job name", name));
  if (spec_json.size() > kMaxSpecBytes) {
    return absl::InvalidArgumentError(absl::StrCat("job ", name, ": the spec is ", spec_json.size(),
                                                   " bytes long; at most ", kMaxSpecBytes,
                                                   " are taken"));
  }
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(spec_json);
  if (!spec.ok()) return Annotate(spec.status(), absl::StrCat("job ", name));
  XFER_RETURN_IF_ERROR(Annotate(Validate(*spec), absl::StrCat("job ", name)));
  absl::StatusOr<TensorTable> tensors = BuildTensorTable(spec->config);
  if (!tensors.ok()) return Annotate(tensors.status(), absl::StrCat("job ", name));
  return InsertJob(name, spec_json, *std::move(spec), *std::move(tensors));
}

absl::StatusOr<v1::Job> Registry::AlreadyThere(const JobData& job, const ModelSpec& spec) const {
  if (ToJson(job.spec) == ToJson(spec)) return job.info;
  return absl::AlreadyExistsError(
      absl::StrCat("job ", job.info.name(), " exists with model ", job.spec.name,
                   " and another model or parallelism; take another job name or finish that job"));
}

absl::StatusOr<v1::Job> Registry::InsertJob(const std::string& name, const std::string& spec_json,
                                            ModelSpec spec, TensorTable tensors) {
  XFER_RETURN_IF_ERROR(CheckName("job name", name));
  absl::MutexLock lock(&mu_);
  uint64_t generation = 1;
  if (auto it = jobs_.find(name); it != jobs_.end()) {
    const JobData& old = it->second;
    if (!old.info.finished()) return AlreadyThere(old, spec);
    if (!old.ranks.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "job ", name, " has finished, but ", old.ranks.size(),
          " of its ranks are still registered, e.g. ", old.ranks.begin()->first.ToString(),
          " on node ", old.ranks.begin()->second.node, "; end them or take another name"));
    }
    for (const Engine& engine : old.engines) {
      if (engine.running_sync == 0) continue;
      return absl::FailedPreconditionError(absl::StrCat("job ", name, " has finished, but sync ",
                                                        engine.running_sync,
                                                        " of it is running; cancel that first"));
    }
    generation = old.info.generation() + 1;  // plans of the old one must not match
  }
  if (!jobs_.contains(name) && jobs_.size() >= kMaxJobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", jobs_.size(), " jobs already; restart the coordinator"));
  }
  v1::Job info;
  info.set_name(name);
  info.set_spec_json(spec_json);
  info.set_generation(generation);
  XFER_RETURN_IF_ERROR(store_->ReplaceJob(info));
  JobData& job = jobs_[name];
  job = JobData();
  job.info = std::move(info);
  job.engines.resize(spec.rollout.engines());
  job.spec = std::move(spec);
  job.tensors = std::make_shared<const TensorTable>(std::move(tensors));
  Changed(job);
  spdlog::info("job {}: created, model {}, {} trainers, {} engines of {}", name, job.spec.name,
               job.spec.train.world, job.engines.size(), job.spec.rollout.gpus_per_engine);
  return job.info;
}

absl::StatusOr<v1::Job> Registry::GetJob(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(const JobData* job, Find(name));
  return job->info;
}

std::vector<v1::Job> Registry::ListJobs() const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::Job> out;
  out.reserve(jobs_.size());
  for (const auto& [name, job] : jobs_) out.push_back(job.info);
  return out;
}

absl::StatusOr<v1::Job> Registry::FinishJob(const std::string& name, const v1::Outcome& outcome) {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(JobData * job, Find(name));
  if (!job->info.finished()) {
    v1::Job info = job->info;
    info.set_finished(true);
    *info.mutable_outcome() = outcome;
    XFER_RETURN_IF_ERROR(store_->UpdateJob(info));
    job->info = std::move(info);
    Changed(*job);
    spdlog::info("job {}: finished, code {}: {}", name, outcome.code(), outcome.message());
  }
  return job->info;
}

absl::StatusOr<std::shared_ptr<const v1::JobState>> Registry::State(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(const JobData* job, Find(name));
  if (job->state == nullptr) job->state = std::make_shared<const v1::JobState>(BuildState(*job));
  return job->state;
}

void Registry::AdmitNode(const std::string& node, uint64_t incarnation, int32_t nics) {
  absl::MutexLock lock(&mu_);
  nodes_[node] = {incarnation, nics};
}

void Registry::DropNode(const std::string& node, uint64_t incarnation, const std::string& reason) {
  std::vector<Gone> gone;
  {
    absl::MutexLock lock(&mu_);
    auto admitted = nodes_.find(node);
    if (admitted != nodes_.end() && admitted->second.incarnation == incarnation) {
      nodes_.erase(admitted);
    }
    for (auto& [name, job] : jobs_) {
      const size_t before = gone.size();
      for (auto it = job.ranks.begin(); it != job.ranks.end();) {
        const RankEntry& rank = it->second;
        if (rank.node == node && rank.incarnation == incarnation) {
          gone.push_back({name, rank, absl::StrCat("node ", node, " was lost: ", reason)});
          it = job.ranks.erase(it);
        } else {
          ++it;
        }
      }
      if (gone.size() == before) continue;
      job.info.set_generation(job.info.generation() + 1);
      Changed(job);
    }
  }
  Tell(gone);
}

std::map<std::string, std::pair<int32_t, uint64_t>> Registry::RanksByNode() const {
  absl::MutexLock lock(&mu_);
  std::map<std::string, std::pair<int32_t, uint64_t>> out;
  for (const auto& [name, job] : jobs_) {
    for (const auto& [id, rank] : job.ranks) {
      auto& [ranks, bytes] = out[rank.node];
      ++ranks;
      for (uint64_t region : rank.manifest->region_bytes) bytes += region;
    }
  }
  return out;
}

}  // namespace xfer
