// Threads that are made when they are needed and then kept.
#ifndef XFER_AGENT_EXEC_THREAD_POOL_H_
#define XFER_AGENT_EXEC_THREAD_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace xfer {

// Runs tasks in the order they came, at most `max_threads` at a time. Thread-safe.
class ThreadPool {
 public:
  explicit ThreadPool(size_t max_threads) : max_threads_(max_threads) {}
  // Runs what is queued, then ends the threads.
  ~ThreadPool();

  void Submit(std::function<void()> task);

 private:
  void Work();

  const size_t max_threads_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_THREAD_POOL_H_
