// The syncs of a run, one after another, and what is told of them.
#ifndef XFER_XFERCTL_RUN_STEPS_H_
#define XFER_XFERCTL_RUN_STEPS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/coordinator_client.h"
#include "nlohmann/json_fwd.hpp"
#include "xfer/v1/coordinator.pb.h"
#include "xferctl/context.h"
#include "xferctl/run/options.h"
#include "xferctl/table.h"

namespace xfer {

// Waits until every rank of the job is registered and every trainer is ready at version 1.
// DeadlineExceeded names the ranks that are missing.
absl::Status WaitForRanks(const Context& context, CoordinatorClient& client,
                          const RunOptions& options);

// Syncs versions 1 to `options.steps`, each after the engines' verdicts on the one before and the
// trainers' step, prints a table for each, and adds each sync that ended to `syncs`. The first
// failure ends it: a sync that failed, a rank whose weights are not those of the checkpoint
// (DataLoss names rank, node and tensor), a deadline.
absl::Status RunSteps(const Context& context, CoordinatorClient& client, const RunOptions& options,
                      std::vector<v1::Sync>& syncs);

// Min, median and max a phase over all syncs but the first, which makes the plan and the
// connections.
Table SummaryTable(const std::vector<v1::Sync>& syncs);
// The same and the syncs themselves as a document; `outcome` is the run's.
nlohmann::json RunDocument(const RunOptions& options, const std::vector<v1::Sync>& syncs,
                           const absl::Status& outcome);

// OK while the state does not contradict `version`; DataLoss for a bad verdict on it.
absl::Status CheckVerdicts(const v1::JobState& state, int64_t version);
// Whether all `ranks` rollout ranks have a verdict on `version`.
bool AllJudged(const v1::JobState& state, int64_t version, int32_t ranks);
// Whether all `ranks` trainers are ready at `version` or later.
bool AllReady(const v1::JobState& state, int64_t version, int32_t ranks);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_STEPS_H_
