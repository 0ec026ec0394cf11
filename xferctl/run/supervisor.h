// Keeps the children of a run: sees at once that one has died, and leaves none behind.
#ifndef XFER_XFERCTL_RUN_SUPERVISOR_H_
#define XFER_XFERCTL_RUN_SUPERVISOR_H_

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/coordinator_client.h"
#include "common/base/unique_fd.h"
#include "xferctl/run/process.h"

namespace xfer {

// Start() belongs to the main thread (see Spawn()); everything else may be called from any thread.
class Supervisor {
 public:
  using ChildId = size_t;
  struct Program {
    std::string name;     // for messages and the log's name, e.g. "xfer-agent node-1"
    std::string program;  // file name, see FindProgram()
    std::vector<std::string> args;
  };

  // `log_directory` exists and gets a file a child. `calls` is cancelled by Interrupt().
  Supervisor(std::string log_directory, CallCanceller& calls);
  // Ends all that is left with SIGKILL.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  absl::StatusOr<ChildId> Start(const Program& program);
  // The words behind "ready". Fails with the child's end, with the reason of an interruption, or
  // DeadlineExceeded.
  absl::StatusOr<std::vector<std::string>> WaitReady(ChildId child, absl::Time deadline);
  // Sends `signal`, waits for the children's end, and sends SIGKILL to those that are left after
  // `patience`, or at once when an interruption comes. The first of them that did not end with
  // status 0 is the error.
  absl::Status Stop(const std::vector<ChildId>& children, int signal, absl::Duration patience);

  // Makes waits and calls end with `reason`; the first one stands.
  void Interrupt(const absl::Status& reason);
  // Why the run was interrupted, by Interrupt() or by the death of a child that nobody stopped;
  // waits up to `patience` for it. OK where it was not.
  absl::Status Interruption(absl::Duration patience) const;
  // The last lines of the log of the child whose death was the interruption, each with its name in
  // front.
  std::vector<std::string> LogTail() const;

 private:
  struct Child {
    std::string name;
    std::string log;
    SpawnedProcess process;
    std::string ready_line;  // what has come so far
    bool ready_closed = false;
    bool stopped = false;  // it was asked to end
    bool exited = false;
    int exit_code = 0;  // siginfo's si_code
    int exit_status = 0;
  };

  void Watch();
  // What to poll now: the wake event, then pidfds and pipes; `who` has the child of each.
  void Collect(std::vector<pollfd>& fds, std::vector<Child*>& who);
  void ReadReady(Child& child) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Reap(Child& child) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first started of the children that have died by themselves; null where there is none.
  const Child* Culprit() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void BlameCulprit() ABSL_LOCKS_EXCLUDED(mu_);
  void Wake();

  const std::string log_directory_;
  CallCanceller& calls_;
  UniqueFd wake_;
  mutable absl::Mutex mu_;
  std::vector<std::unique_ptr<Child>> children_ ABSL_GUARDED_BY(mu_);
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> tail_ ABSL_GUARDED_BY(mu_);
  bool blaming_ ABSL_GUARDED_BY(mu_) =
      false;  // a child has died; wait a little for others, then say so
  absl::Time blame_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watcher_;
};

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_SUPERVISOR_H_
