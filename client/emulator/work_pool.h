// A few threads that work through jobs of many independent items (a rank's tensors).
#ifndef XFER_CLIENT_EMULATOR_WORK_POOL_H_
#define XFER_CLIENT_EMULATOR_WORK_POOL_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace xfer {

// Thread-safe. Jobs are worked on in the order in which they came, by all threads together.
class WorkPool {
 public:
  explicit WorkPool(int threads);
  // Waits for all jobs; call Cancel() first to be quick. No job may be started meanwhile.
  ~WorkPool();

  // Calls each(0) .. each(items - 1) on the pool's threads and then done(status) once, on one of
  // them: OK, or the failure of the smallest item, with the number of further failures. With no
  // items, done(OK) is called here and now.
  void Start(size_t items, std::function<absl::Status(size_t)> each,
             std::function<void(const absl::Status&)> done);
  // The same, and waits. Must not be called from a thread of the pool.
  absl::Status Run(size_t items, std::function<absl::Status(size_t)> each);
  // Skips items that have not begun, of this and every later job. Does not wait.
  void Cancel();

 private:
  struct Job {
    std::function<absl::Status(size_t)> each;
    std::function<void(const absl::Status&)> done;
    size_t items = 0;
    size_t next = 0;     // first item that nobody has taken
    size_t running = 0;  // taken and not ended
    size_t failures = 0;
    size_t worst = 0;  // smallest item that failed
    absl::Status status;
  };

  void Work();

  absl::Mutex mu_;
  std::deque<std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);  // with items that nobody has taken
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace xfer

#endif  // XFER_CLIENT_EMULATOR_WORK_POOL_H_
