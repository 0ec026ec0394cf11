// What operators' tools call on the coordinator: typed calls, each with a deadline, with one way to
// say that no coordinator is there. No gRPC in this header; messages are those of proto/xfer/v1.
#ifndef XFER_CLIENT_COORDINATOR_CLIENT_H_
#define XFER_CLIENT_COORDINATOR_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "xfer/v1/coordinator.pb.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace xfer {

// Ends calls from another thread. Once cancelled it stays so: running calls end with its reason,
// later ones do not start. Thread-safe; outlives the clients that it is given to.
class CallCanceller {
 public:
  // The first reason given stands. `reason` must not be OK.
  void Cancel(const absl::Status& reason);
  // OK while not cancelled.
  absl::Status status() const;
  // Waits until cancelled, at most until `deadline`; true where it was.
  bool WaitUntil(absl::Time deadline) const;

 private:
  friend class ScopedCall;
  mutable absl::Mutex mu_;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  std::vector<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mu_);
};

// True for a status that says that the coordinator could not be reached (or was lost); such a
// status is Unavailable or DeadlineExceeded and names its address.
bool IsUnreachable(const absl::Status& status);

// One connection to a coordinator. Thread-safe. Errors are the service's own (its message says what
// to do) or satisfy IsUnreachable(); every call ends within its deadline (kCallTimeout where none
// is given).
class CoordinatorClient {
 public:
  static constexpr absl::Duration kCallTimeout = absl::Seconds(20);

  // `address` is HOST:PORT. Waits up to `timeout` for the connection. `canceller` may be null.
  static absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect(
      const std::string& address, absl::Duration timeout, CallCanceller* canceller = nullptr);
  virtual ~CoordinatorClient() = default;

  virtual const std::string& address() const = 0;

  virtual absl::StatusOr<v1::ListModelsReply> ListModels() = 0;
  virtual absl::StatusOr<v1::Model> GetModel(const std::string& name) = 0;
  virtual absl::StatusOr<v1::Model> AddModel(const std::string& spec_json, bool replace) = 0;
  virtual absl::StatusOr<v1::Job> CreateJob(const std::string& name,
                                            const std::string& spec_json) = 0;
  virtual absl::StatusOr<v1::Job> GetJob(const std::string& name) = 0;
  virtual absl::StatusOr<v1::ListJobsReply> ListJobs() = 0;
  virtual absl::StatusOr<v1::Job> FinishJob(const std::string& name,
                                            const absl::Status& outcome) = 0;
  virtual absl::StatusOr<v1::ListNodesReply> ListNodes() = 0;
  virtual absl::StatusOr<v1::ListEnginesReply> ListEngines(const std::string& job) = 0;
  virtual absl::StatusOr<v1::ListRanksReply> ListRanks(const std::string& job) = 0;
  virtual absl::StatusOr<uint64_t> TriggerSync(const v1::TriggerSyncRequest& request) = 0;
  virtual absl::StatusOr<v1::Sync> GetSync(uint64_t sync_id) = 0;
  virtual absl::StatusOr<v1::ListSyncsReply> ListSyncs(const std::string& job, int32_t limit) = 0;
  virtual absl::StatusOr<v1::Sync> CancelSync(uint64_t sync_id) = 0;
  virtual absl::StatusOr<v1::GetPlanReply> GetPlan(const v1::GetPlanRequest& request) = 0;

  // Calls fn(state) for every state until fn returns false or the stream ends (the job is
  // finished). OK in both cases. DeadlineExceeded at `deadline`.
  virtual absl::Status WatchJob(const std::string& name, absl::Time deadline,
                                absl::FunctionRef<bool(const v1::JobState&)> fn) = 0;
  // The same for a sync, until it has ended; returns its last state.
  virtual absl::StatusOr<v1::Sync> WatchSync(uint64_t sync_id, absl::Time deadline,
                                             absl::FunctionRef<void(const v1::Sync&)> fn) = 0;
  virtual absl::Status GetTimings(uint64_t sync_id, bool transfers,
                                  absl::FunctionRef<void(const v1::TimingsPart&)> fn) = 0;
};

}  // namespace xfer

#endif  // XFER_CLIENT_COORDINATOR_CLIENT_H_
