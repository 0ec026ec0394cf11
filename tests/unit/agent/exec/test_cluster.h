// A few agents' executors in one process, joined by real transports; the rest of the world is
// faked.
#ifndef XFER_TESTS_UNIT_AGENT_EXEC_TEST_CLUSTER_H_
#define XFER_TESTS_UNIT_AGENT_EXEC_TEST_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "agent/exec/endpoint_pool.h"
#include "agent/exec/executor.h"
#include "agent/exec/interfaces.h"
#include "agent/exec/receive_state.h"
#include "agent/memory/rank_table.h"
#include "agent/transport/faulty.h"
#include "agent/transport/tcp.h"

namespace xfer {

// A region that is filled with a pattern; the owner's view of it.
struct TestRegion {
  MappedRegion owner;
  MappedRegion agent;
};
TestRegion MakeTestRegion(uint64_t bytes);
void Fill(absl::Span<std::byte> bytes, uint32_t seed);

class FakeLink final : public CoordinatorLink {
 public:
  absl::Status FetchPlan(uint64_t plan_id, absl::Time deadline,
                         absl::FunctionRef<absl::Status(const v1::PlanPart&)> part) override;
  absl::Status ReportTimings(const std::vector<v1::TransferTimings>& batches,
                             absl::Time deadline) override;
  void Send(v1::AgentEvent event) override;
  int64_t ClockOffsetNanos() const override { return 0; }

  void SetPlan(uint64_t plan_id, v1::PlanPart part);
  int fetches() const;
  // The answer to a step; fails the test if it does not come within `limit`.
  v1::StepResult Await(uint64_t sync_id, v1::StepKind kind,
                       absl::Duration limit = absl::Seconds(20));
  int answers(uint64_t sync_id, v1::StepKind kind) const;
  std::vector<v1::TransferTimings> AwaitTimings();

 private:
  mutable absl::Mutex mu_;
  std::map<uint64_t, v1::PlanPart> plans_ ABSL_GUARDED_BY(mu_);
  int fetches_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<v1::StepResult> results_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::TransferTimings> timings_ ABSL_GUARDED_BY(mu_);
};

class FakeHooks final : public HookCaller {
 public:
  void Call(const HookOrder& order, std::function<void(absl::Status)> done) override;

  // Decides what a hook answers; nullopt: never. The default is OK.
  using Answer = std::function<std::optional<absl::Status>(const HookOrder&)>;
  void SetAnswer(Answer answer);
  std::vector<HookOrder> calls() const;
  // Waits until `n` hooks of this kind were called.
  bool AwaitCalls(HookKind hook, size_t n);

 private:
  mutable absl::Mutex mu_;
  Answer answer_ ABSL_GUARDED_BY(mu_);
  std::vector<HookOrder> calls_ ABSL_GUARDED_BY(mu_);
};

class TestCluster;

struct TestNode final : public PeerIdentifier {
  TestNode(TestCluster* cluster, std::string name, const FaultPlan& faults,
           const ExecutorOptions& options);
  absl::StatusOr<PeerIdentity> Identify(const v1::Peer& peer, absl::Time deadline) override;
  v1::Peer AsPeer() const;

  TestCluster* const cluster;
  const std::string name;
  uint64_t incarnation;
  ReceiveState receive;
  FakeLink link;
  FakeHooks hooks;
  TcpTransport* tcp_port = nullptr;
  std::unique_ptr<Transport> tcp;
  std::unique_ptr<Transport> local;
  std::unique_ptr<RankTable> ranks;
  std::unique_ptr<EndpointPool> endpoints;
  std::unique_ptr<SyncExecutor> executor;
};

// A rank with one region.
struct TestRank {
  RankId id;
  std::string node;
  uint64_t registration_id = 0;
  absl::Span<std::byte> bytes;  // the owner's view
};

class TestCluster {
 public:
  explicit TestCluster(const ExecutorOptions& options = {}) : options_(options) {}

  // Faults hit what this node sends.
  TestNode& AddNode(const std::string& name, const FaultPlan& faults = {});
  TestNode& node(const std::string& name) { return *nodes_.at(name); }
  // Returns the rank's index in the plan.
  int AddRank(const std::string& node, RankId id, uint64_t bytes);
  TestRank& rank(int index) { return ranks_[index]; }

  // `bytes` at the same offset of both ranks.
  Transfer& AddTransfer(int source, int destination, uint64_t offset, uint64_t bytes);
  // Gives each node its part of a plan with all transfers.
  void Publish(uint64_t plan_id);

  v1::Step MakeStep(uint64_t sync_id, v1::StepKind kind,
                    absl::Duration deadline = absl::Seconds(20)) const;
  // Sends the step to all nodes, with their ranks, and returns their answers.
  std::map<std::string, v1::StepResult> RunStep(const v1::Step& step);
  void SendStep(const std::string& node, v1::Step step);
  // CONNECT, PAUSE, TRANSFER, COMMIT, RESUME; expects OK everywhere.
  void RunSync(uint64_t sync_id, const std::function<void(v1::Step&)>& change = {});

  uint64_t plan_id = 1;
  std::vector<Transfer> transfers;

 private:
  friend struct TestNode;
  const ExecutorOptions options_;
  std::map<std::string, std::unique_ptr<TestNode>> nodes_;
  std::vector<TestRank> ranks_;
  std::vector<MappedRegion> owned_;
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_EXEC_TEST_CLUSTER_H_
