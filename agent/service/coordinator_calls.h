// Calls to the coordinator that are not part of the session's stream.
#ifndef XFER_AGENT_SERVICE_COORDINATOR_CALLS_H_
#define XFER_AGENT_SERVICE_COORDINATOR_CALLS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/memory/rank_table.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {

// Thread-safe. Each call fails with DeadlineExceeded at its deadline, Unavailable where there is no
// connection; messages name the coordinator's address.
class CoordinatorCalls {
 public:
  CoordinatorCalls(std::string address, std::string node, uint64_t incarnation,
                   const std::shared_ptr<grpc::Channel>& channel);

  absl::StatusOr<v1::Job> GetJob(const std::string& name, absl::Time deadline);
  // Returns the job's generation afterwards.
  absl::StatusOr<uint64_t> Publish(const LocalRank& rank, absl::Time deadline);
  absl::Status FetchPlan(uint64_t plan_id, absl::Time deadline,
                         absl::FunctionRef<absl::Status(const v1::PlanPart&)> part);
  absl::Status ReportTimings(const std::vector<v1::TransferTimings>& batches, absl::Time deadline);
  // Cancels the calls that are running and all that come later.
  void CancelAll();

 private:
  // A call's context while it runs.
  class Call;

  absl::Status Name(const absl::Status& status) const;

  const std::string address_;
  const std::string node_;
  const uint64_t incarnation_;
  const std::unique_ptr<v1::Coordinator::Stub> coordinator_;
  const std::unique_ptr<v1::AgentHub::Stub> hub_;
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_COORDINATOR_CALLS_H_
