// Models of the jobs that ranks of this node belong to.
#ifndef XFER_AGENT_SERVICE_JOB_MODELS_H_
#define XFER_AGENT_SERVICE_JOB_MODELS_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/layout/manifest.h"
#include "common/model/model.h"
#include "common/plan/plan.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

// A job's spec and what is derived from it. Immutable.
struct JobModel {
  std::string job;
  std::string spec_json;
  ModelSpec spec;
  TensorTable tensors;
};

// InvalidArgument: the rank does not exist in the job, or `world` is not its size.
absl::Status CheckRank(const JobModel& model, const RankId& id, int32_t world);
// What the rank holds, from what its layout requires and where it says that it is.
absl::StatusOr<Manifest> ManifestOf(const JobModel& model, const RankId& id,
                                    absl::Span<const TensorPlacement> placements,
                                    absl::Span<const uint64_t> region_bytes);

// Keeps the latest models: the ranks of a node register at the same time, and a table of a large
// model takes a while to build. Thread-safe.
class JobModels {
 public:
  absl::StatusOr<std::shared_ptr<const JobModel>> Get(const v1::Job& job);

 private:
  absl::Mutex mu_;  // also held while a model is built, so that it is built once
  std::list<std::shared_ptr<const JobModel>> models_ ABSL_GUARDED_BY(mu_);  // newest use first
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_JOB_MODELS_H_
