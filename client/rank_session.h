// A registered rank: the session stream with the agent and the thread that reads it. Internal to
// the library.
#ifndef XFER_CLIENT_RANK_SESSION_H_
#define XFER_CLIENT_RANK_SESSION_H_

#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/rank_client.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer {

class RankSession final : public RegisteredRank {
 public:
  // Opens the stream for a registration that the agent has just made, and returns once the agent
  // has attached it. On failure the rank is unregistered again.
  static absl::StatusOr<std::unique_ptr<RankSession>> Open(
      std::shared_ptr<v1::LocalAgent::StubInterface> stub, const RankOptions& options,
      uint64_t registration_id, absl::Time deadline);
  // Unregisters and waits for a hook that is running. Must not be called from a hook or from
  // on_lost.
  ~RankSession() override;

  uint64_t registration_id() const override { return registration_id_; }
  absl::Status ReportReady(int64_t version) override;
  absl::Status ReportVerdict(int64_t version, const absl::Status& verdict) override;

 private:
  using Stream = grpc::ClientReaderWriterInterface<v1::RankEvent, v1::RankCommand>;

  RankSession(std::shared_ptr<v1::LocalAgent::StubInterface> stub, const RankOptions& options,
              uint64_t registration_id);
  void ReadLoop();
  void RunHook(const v1::HookCall& call);
  absl::Status Write(const v1::RankEvent& event);

  const std::shared_ptr<v1::LocalAgent::StubInterface> stub_;
  const std::string name_;  // for messages
  const uint64_t registration_id_;
  const std::function<absl::Status(const HookCall&)> on_hook_;
  const std::function<void(const absl::Status&)> on_lost_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  absl::Notification attached_or_over_;
  absl::Mutex mu_;  // also serialises writes, which gRPC does not
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);  // why, once over_
  std::thread reader_;
};

}  // namespace xfer

#endif  // XFER_CLIENT_RANK_SESSION_H_
