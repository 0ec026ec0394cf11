#include "xferctl/run/machines.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/rpc/status.h"
#include "xferctl/exit.h"

namespace xfer {
namespace {

// How often the coordinator is asked where it offers no stream to wait on.
constexpr absl::Duration kAskAgain = absl::Milliseconds(200);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);
constexpr absl::Duration kReconnect = absl::Seconds(3);

std::vector<std::string> OtherNodes(const v1::ListNodesReply& nodes,
                                    const std::vector<NodeRanks>& here) {
  std::vector<std::string> others;
  for (const v1::NodeInfo& node : nodes.nodes()) {
    const bool own = std::any_of(here.begin(), here.end(),
                                 [&](const NodeRanks& mine) { return mine.node == node.name(); });
    if (!own && node.state() == v1::NODE_STATE_ALIVE) others.push_back(node.name());
  }
  return others;
}

}  // namespace

absl::Status WaitForJob(CoordinatorClient& client, const RunOptions& options,
                        const CallCanceller& calls) {
  const absl::Time deadline = absl::Now() + options.deadline;
  while (true) {
    XFER_ASSIGN_OR_RETURN(const v1::ListJobsReply jobs, client.ListJobs());
    for (const v1::Job& job : jobs.jobs()) {
      if (job.name() != options.name) {
        return absl::FailedPreconditionError(absl::StrCat(
            "the head at ", client.address(), " runs ", job.name(), ", not ", options.name,
            ": give the same model, --layers and --tiny on every machine"));
      }
      if (job.spec_json() == ToJson(options.job_spec)) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat(
          "the head at ", client.address(), " runs ", job.name(),
          " with other figures: use the same xfer and the same --bucket-size-gb on every machine"));
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the head at ", client.address(),
                                                      " made no job within ",
                                                      absl::FormatDuration(options.deadline)));
    }
    if (calls.WaitUntil(absl::Now() + kAskAgain)) return calls.status();
  }
}

absl::Status WaitForFinish(CoordinatorClient& client, const RunOptions& options) {
  // Registration, and for each step a sync and a check; each part has its deadline at the head.
  const absl::Time deadline = absl::Now() + options.deadline * (2 * int64_t{options.steps} + 2);
  v1::Job job;
  XFER_RETURN_IF_ERROR(client.WatchJob(options.name, deadline, [&job](const v1::JobState& state) {
    job = state.job();
    return !job.finished();
  }));
  if (!job.finished())
    return absl::UnavailableError("the coordinator ended the job's stream before the job");
  return InContext(FromOutcome(job.outcome()), "the head ended the run");
}

absl::Status FinishRun(const std::string& coordinator, const RunOptions& options,
                       const std::vector<NodeRanks>& here, const absl::Status& outcome) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                        CoordinatorClient::Connect(coordinator, kReconnect));
  XFER_RETURN_IF_ERROR(client->FinishJob(options.name, outcome).status());
  if (!options.node_rank.has_value()) return absl::OkStatus();
  const absl::Time deadline = absl::Now() + kLeaveTimeout;
  const CallCanceller nobody;
  while (true) {
    XFER_ASSIGN_OR_RETURN(const v1::ListNodesReply nodes, client->ListNodes());
    const std::vector<std::string> others = OtherNodes(nodes, here);
    if (others.empty()) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("these nodes have not left within ",
                                                      absl::FormatDuration(kLeaveTimeout), ": ",
                                                      absl::StrJoin(others, ", ")));
    }
    nobody.WaitUntil(std::min(deadline, absl::Now() + kAskAgain));
  }
}

}  // namespace xfer
