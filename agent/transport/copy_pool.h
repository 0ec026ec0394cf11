// The copying threads of the local transport.
#ifndef XFER_AGENT_TRANSPORT_COPY_POOL_H_
#define XFER_AGENT_TRANSPORT_COPY_POOL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace xfer {

// A fixed number of threads that work through jobs in order, several threads on one job.
// Thread-safe.
class CopyPool {
 public:
  // Something that is done in independent steps.
  class Job {
   public:
    // `owner` names whose job it is, for Cancel().
    Job(const void* owner, uint64_t steps) : owner_(owner), steps_(steps) {}
    virtual ~Job() = default;
    // Called once for each step number, from several threads at a time.
    virtual void Step(uint64_t step) = 0;
    // Called once, when no step runs any more and none will.
    virtual void Done(bool cancelled) = 0;

   private:
    friend class CopyPool;
    const void* const owner_;
    // Guarded by the pool's mutex.
    uint64_t steps_;
    uint64_t issued_ = 0;
    uint64_t running_ = 0;
    bool cancelled_ = false;
  };

  explicit CopyPool(int threads);
  // All jobs must have been done or cancelled.
  ~CopyPool();

  void Submit(std::shared_ptr<Job> job);
  // Starts no further step of this owner's jobs. Those without a running step are Done() on return,
  // the others soon after.
  void Cancel(const void* owner);

 private:
  void Work();

  absl::Mutex mu_;
  absl::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<Job>> queue_ ABSL_GUARDED_BY(mu_);  // jobs with steps to issue
  std::vector<std::thread> threads_;
};

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_COPY_POOL_H_
