// Jobs, their ranks and their engines: what is registered, at which version, and what is missing.
#ifndef XFER_COORDINATOR_REGISTRY_REGISTRY_H_
#define XFER_COORDINATOR_REGISTRY_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/layout/manifest.h"
#include "common/model/model.h"
#include "common/plan/plan.h"
#include "coordinator/registry/change_feed.h"
#include "coordinator/store/store.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// A registered rank. The manifest is shared and never changed.
struct RankEntry {
  RankId id;
  std::string node;
  uint64_t incarnation = 0;      // of the node
  uint64_t registration_id = 0;  // unique within the incarnation
  int64_t pid = 0;
  int32_t nic = 0;
  std::shared_ptr<const Manifest> manifest;
  int64_t ready_version = 0;  // trainers; 0: not said
  v1::OwnerReport owner_report;

  // The same registration of the same process.
  bool SameRegistration(const RankEntry& other) const {
    return id == other.id && node == other.node && incarnation == other.incarnation &&
           registration_id == other.registration_id;
  }
};

// What a sync, or a plan, works on: a moment of a job, frozen.
struct SyncInput {
  std::string job;
  uint64_t generation = 0;
  int64_t version = 0;
  std::vector<int32_t> engines;  // sorted
  std::vector<RankEntry> ranks;  // all trainers and the engines' ranks, sorted by id
  std::shared_ptr<const TensorTable> tensors;
  std::vector<std::pair<std::string, int32_t>> nics;  // of the ranks' nodes
  std::set<int32_t> dirty;                            // of `engines`, those that were dirty before
  int32_t transfer_timeout_s = 0;
};

// Thread-safe. Errors name the job, rank or engine, and what to do. Jobs, and versions and
// dirtiness of engines, are in the store before a call that changes them returns; where the store
// fails, the call returns its error and changes nothing. Ranks are not stored: their agents publish
// them again.
class Registry {
 public:
  // Told of every registration that ended (gone, replaced, node lost); called without locks held.
  using RankGone =
      std::function<void(const std::string& job, const RankEntry& rank, const std::string& reason)>;
  // `store` is borrowed.
  Registry(RankGone on_rank_gone, Store* store);
  // Takes what the store has; before anything else. Errors are the store's, or name a job whose
  // spec this version does not understand.
  absl::Status Restore();

  // --- models and jobs

  // Parses and checks `spec_json`. A job with the same model and parallelism is returned as it is;
  // one that has finished and has no ranks any more makes room. AlreadyExists: another model has
  // the name.
  absl::StatusOr<v1::Job> CreateJob(const std::string& name, const std::string& spec_json);
  // The same with the spec and its tensors at hand.
  absl::StatusOr<v1::Job> InsertJob(const std::string& name, const std::string& spec_json,
                                    ModelSpec spec, TensorTable tensors);
  absl::StatusOr<v1::Job> GetJob(const std::string& name) const;
  std::vector<v1::Job> ListJobs() const;
  // The first verdict stands: finishing twice changes nothing.
  absl::StatusOr<v1::Job> FinishJob(const std::string& name, const v1::Outcome& outcome);
  // Everything a watcher wants; built once a change and shared.
  absl::StatusOr<std::shared_ptr<const v1::JobState>> State(const std::string& name) const;
  // Changes by job name.
  ChangeFeed& feed() { return feed_; }

  // --- nodes

  // Ranks of this incarnation may be published from now on.
  void AdmitNode(const std::string& node, uint64_t incarnation, int32_t nics);
  // Drops its ranks and admits no more of them. No effect if another incarnation is admitted.
  void DropNode(const std::string& node, uint64_t incarnation, const std::string& reason);
  // Ranks registered on a node, and the bytes of their regions.
  std::map<std::string, std::pair<int32_t, uint64_t>> RanksByNode() const;

  // --- ranks

  // Registers a rank or replaces what it had on its node; returns the job's generation after it,
  // which stands still when the same registration comes again. NotFound: no such job.
  // InvalidArgument: the rank is outside the world, or a piece outside its tensor or region.
  // FailedPrecondition: the node's incarnation is not the living one, or the job has finished.
  // AlreadyExists: another node holds it.
  absl::StatusOr<uint64_t> PublishRank(const std::string& job, RankEntry rank);
  // Ends a registration; no effect where it is not the current one.
  void DropRank(const std::string& job, const RankId& id, const std::string& node,
                uint64_t incarnation, uint64_t registration_id, const std::string& reason);
  // A rank's own words; `report.owner_report` counts if it is set. NotFound: not the current
  // registration.
  absl::Status Report(const std::string& node, uint64_t incarnation, const v1::RankReport& report);
  absl::StatusOr<std::vector<v1::RankInfo>> ListRanks(const std::string& job) const;
  absl::StatusOr<std::vector<v1::EngineInfo>> ListEngines(const std::string& job) const;

  // --- syncs

  // Checks that a sync of `engines` (empty: all) to `version` (0: the trainers') may start, and
  // marks the engines as taken by it until EndSync(). FailedPrecondition: missing ranks, trainers
  // that differ, an engine that another sync has, a finished job.
  absl::StatusOr<SyncInput> BeginSync(const std::string& job, const std::vector<int32_t>& engines,
                                      int64_t version, uint64_t sync_id);
  // The input of a plan, without a sync. FailedPrecondition: missing ranks.
  absl::StatusOr<SyncInput> PlanInputOf(const std::string& job,
                                        const std::vector<int32_t>& engines) const;
  // Ranks of `input` whose registration is no longer the current one.
  std::vector<RankId> Outdated(const SyncInput& input) const;
  // `reasons` by engine. No effect where the job is gone.
  absl::Status MarkDirty(const std::string& job, const std::map<int32_t, std::string>& reasons);
  // Sets the version and clears dirty. FailedPrecondition where a rank of the engine was registered
  // anew since `input`: then nobody knows what it holds.
  absl::Status Commit(const SyncInput& input, int32_t engine);
  void EndSync(const std::string& job, absl::Span<const int32_t> engines, uint64_t sync_id);

 private:
  struct Engine {
    int64_t version = 0;
    bool dirty = false;
    std::string dirty_reason;
    uint64_t running_sync = 0;
    // The registrations whose memory got `version`. It counts only while its ranks are these.
    std::vector<StoredRank> holders;
  };
  struct JobData {
    v1::Job info;
    ModelSpec spec;
    std::shared_ptr<const TensorTable> tensors;
    std::map<RankId, RankEntry> ranks;
    std::vector<Engine> engines;
    mutable std::shared_ptr<const v1::JobState> state;  // null: to be built
  };
  struct Gone {
    std::string job;
    RankEntry rank;
    std::string reason;
  };

  absl::StatusOr<JobData*> Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const JobData*> Find(const std::string& name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Changed(JobData& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<v1::Job> AlreadyThere(const JobData& job, const ModelSpec& spec) const;
  absl::Status CheckPublish(const JobData& job, const RankEntry& rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<SyncInput> Freeze(const JobData& job, const std::vector<int32_t>& engines) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const std::vector<Gone>& gone) const ABSL_LOCKS_EXCLUDED(mu_);
  // Stores `changed` engines, then makes them the job's.
  absl::Status SetEngines(JobData& job, const std::map<int32_t, Engine>& changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RestoreJob(const StoredJob& stored) ABSL_LOCKS_EXCLUDED(mu_);

  const RankGone on_rank_gone_;
  Store* const store_;
  mutable absl::Mutex mu_;
  std::map<std::string, JobData> jobs_ ABSL_GUARDED_BY(mu_);
  struct Admitted {
    uint64_t incarnation = 0;
    int32_t nics = 1;
  };
  absl::flat_hash_map<std::string, Admitted> nodes_ ABSL_GUARDED_BY(mu_);
  ChangeFeed feed_;

  // Reading of JobData, in views.cc; all under mu_.
  static v1::RankInfo InfoOf(const RankEntry& rank);
  static std::vector<v1::EngineInfo> EnginesOf(const JobData& job);
  static std::vector<RankId> ExpectedRanks(const JobData& job, const std::vector<int32_t>* engines);
  static v1::JobState BuildState(const JobData& job);
  static absl::StatusOr<int64_t> AgreedVersion(const JobData& job, int64_t version);
};

// InvalidArgument unless every piece lies inside its tensor and its region, without wrap-around.
absl::Status CheckPieces(const Manifest& manifest, const TensorTable& tensors);

}  // namespace xfer

#endif  // XFER_COORDINATOR_REGISTRY_REGISTRY_H_
