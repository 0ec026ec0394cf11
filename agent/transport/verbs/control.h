// How the verbs transport's two ends talk to each other beside the data.
#ifndef XFER_AGENT_TRANSPORT_VERBS_CONTROL_H_
#define XFER_AGENT_TRANSPORT_VERBS_CONTROL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/transport/runs.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/exposure.h"
#include "xfer/v1/agent.pb.h"

namespace xfer {

// Carries a request to the peer's VerbsTransport::Serve() and brings its reply; in an agent, by the
// rpc PeerAgent.Verbs. Thread-safe: several calls to one peer run at the same time.
class VerbsControl {
 public:
  virtual ~VerbsControl() = default;
  // What Serve() says, or why the peer cannot be reached; DeadlineExceeded.
  virtual absl::StatusOr<v1::VerbsReply> Call(const PeerAddress& peer,
                                              const v1::VerbsRequest& request,
                                              absl::Time deadline) = 0;
};

namespace verbs {

struct ExposeResult {
  TransferKey key;
  absl::StatusOr<Destination> destination;
};
struct FinishResult {
  TransferKey key;
  absl::Status status;
};

// An endpoint's control calls, made by threads of its own, as many transfers in a call as are
// waiting. Thread-safe.
class ControlCalls {
 public:
  struct Options {
    std::shared_ptr<VerbsControl> control;
    PeerAddress peer;
    uint64_t session = 0;
    size_t rails = 0;
    absl::Duration lease;         // of the session; something is said three times in it
    absl::Duration call_timeout;  // of one call
    int wake = -1;                // eventfd, written to when there are results
  };
  explicit ControlCalls(Options options);
  // Tells the peer that the session is over, then waits for the calls that run.
  ~ControlCalls();

  void Expose(const v1::VerbsTransfer& transfer);
  void Finish(v1::VerbsFinished transfer);
  // Queue pairs that were given up; said with every finish from now on.
  void GiveUp(uint32_t pair);
  // Appends what is done. An error is final: the peer is gone or has ended the session.
  absl::Status Take(std::vector<ExposeResult>& exposed, std::vector<FinishResult>& finished);

 private:
  void RunExposes();
  void RunFinishes();
  void CallExpose(std::vector<v1::VerbsTransfer> transfers);
  void CallFinish(std::vector<v1::VerbsFinished> transfers, std::vector<uint32_t> dead);
  absl::StatusOr<v1::VerbsReply> Call(v1::VerbsRequest request);
  void Fail(const absl::Status& status);
  void Wake();

  const Options options_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::VerbsTransfer> to_expose_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::VerbsFinished> to_finish_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> dead_ ABSL_GUARDED_BY(mu_);
  std::vector<ExposeResult> exposed_ ABSL_GUARDED_BY(mu_);
  std::vector<FinishResult> finished_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace verbs
}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_VERBS_CONTROL_H_
