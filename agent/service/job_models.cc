#include "agent/service/job_models.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/layout.h"

namespace xfer {
namespace {

constexpr size_t kModelsKept = 4;

}  // namespace

absl::Status CheckRank(const JobModel& model, const RankId& id, int32_t world) {
  const bool trainer = id.role == Role::kTrainer;
  const int32_t ranks = trainer ? model.spec.train.world : model.spec.rollout.gpus_per_engine;
  if (world != ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        id.ToString(), " says it is one of ", world, " ranks; job ", model.job, " (model ",
        model.spec.name, ") has ", ranks, trainer ? " training ranks" : " ranks an engine"));
  }
  if (id.rank >= ranks || (!trainer && id.engine >= model.spec.rollout.engines())) {
    return absl::InvalidArgumentError(
        absl::StrCat(id.ToString(), " does not exist in job ", model.job, ", which has ",
                     model.spec.train.world, " training ranks and ", model.spec.rollout.engines(),
                     " engines of ", model.spec.rollout.gpus_per_engine, " ranks"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ManifestOf(const JobModel& model, const RankId& id,
                                    absl::Span<const TensorPlacement> placements,
                                    absl::Span<const uint64_t> region_bytes) {
  XFER_ASSIGN_OR_RETURN(const RankLayout layout,
                        id.role == Role::kTrainer
                            ? MegatronLayout(model.spec, model.tensors, id.rank)
                            : SglangLayout(model.spec, model.tensors, id.rank));
  return BuildManifest(model.tensors, layout, placements, region_bytes);
}

absl::StatusOr<std::shared_ptr<const JobModel>> JobModels::Get(const v1::Job& job) {
  absl::MutexLock lock(&mu_);
  for (auto it = models_.begin(); it != models_.end(); ++it) {
    if ((*it)->job != job.name() || (*it)->spec_json != job.spec_json()) continue;
    models_.splice(models_.begin(), models_, it);
    return models_.front();
  }
  auto model = std::make_shared<JobModel>();
  model->job = job.name();
  model->spec_json = job.spec_json();
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(job.spec_json());
  if (!spec.ok()) return Annotate(spec.status(), absl::StrCat("spec of job ", job.name()));
  model->spec = *std::move(spec);
  XFER_RETURN_IF_ERROR(Validate(model->spec));
  XFER_ASSIGN_OR_RETURN(model->tensors, BuildTensorTable(model->spec.config));
  models_.push_front(std::move(model));
  if (models_.size() > kModelsKept) models_.pop_back();
  return models_.front();
}

}  // namespace xfer
