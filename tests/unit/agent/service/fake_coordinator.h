// A coordinator that knows one job and keeps what agents tell it.
#ifndef XFER_TESTS_UNIT_AGENT_SERVICE_FAKE_COORDINATOR_H_
#define XFER_TESTS_UNIT_AGENT_SERVICE_FAKE_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/model/model.h"
#include "common/rpc/server.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {

// A model of one small layer: one trainer, `engines` engines of one rank.
ModelSpec TinySpec(int32_t engines = 1);

class FakeCoordinator final : public v1::Coordinator::Service, public v1::AgentHub::Service {
 public:
  // port 0: any free one.
  explicit FakeCoordinator(ModelSpec spec, int port = 0, absl::Duration lease = absl::Seconds(5));
  ~FakeCoordinator() override;

  std::string address() const;
  int port() const { return port_; }
  // Waits until `enough` holds of the events that came; fails the test after some seconds.
  bool Await(const std::function<bool(const std::vector<v1::AgentEvent>&)>& enough);
  bool AwaitManifests(size_t n);
  std::vector<v1::ManifestHeader> manifests() const;
  std::vector<v1::AgentEvent> events() const;
  // Commands for the agent whose session is open.
  void Command(const v1::AgentCommand& command);
  // Sends a step and waits for its answer; fails the test if there is none within some seconds.
  v1::StepResult RunStep(const v1::Step& step);
  void SetPlan(v1::PlanPart plan);
  // Ends the session from here.
  void BreakSession();
  // The next `times` manifests, or all from now on if negative. OK: none.
  void RefuseManifests(absl::Status status, int times = -1);
  int refusals_left() const;

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::Job*) override;
  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::AgentCommand, v1::AgentEvent>*) override;
  grpc::Status PublishManifest(grpc::ServerContext*, grpc::ServerReader<v1::ManifestPart>*,
                               v1::PublishManifestReply*) override;
  grpc::Status FetchPlan(grpc::ServerContext*, const v1::FetchPlanRequest*,
                         grpc::ServerWriter<v1::PlanPart>*) override;

 private:
  const std::string spec_json_;
  const absl::Duration lease_;
  mutable absl::Mutex mu_;
  absl::Mutex write_mu_;  // one write at a time
  std::vector<v1::AgentEvent> events_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::ManifestHeader> manifests_ ABSL_GUARDED_BY(mu_);
  v1::PlanPart plan_ ABSL_GUARDED_BY(mu_);
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  int refusals_left_ ABSL_GUARDED_BY(mu_) = 0;
  grpc::ServerReaderWriter<v1::AgentCommand, v1::AgentEvent>* stream_ ABSL_GUARDED_BY(mu_) =
      nullptr;
  grpc::ServerContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<RpcServer> server_;
  int port_ = 0;
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_SERVICE_FAKE_COORDINATOR_H_
