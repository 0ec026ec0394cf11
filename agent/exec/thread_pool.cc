#include "agent/exec/thread_pool.h"

#include <utility>

namespace xfer {

ThreadPool::~ThreadPool() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    threads = std::move(threads_);
    changed_.SignalAll();
  }
  for (std::thread& thread : threads) thread.join();
}

void ThreadPool::Submit(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
  if (tasks_.size() > idle_ && threads_.size() < max_threads_ && !stopping_) {
    threads_.emplace_back(&ThreadPool::Work, this);
  }
  changed_.Signal();
}

void ThreadPool::Work() {
  mu_.Lock();
  while (true) {
    while (tasks_.empty() && !stopping_) {
      ++idle_;
      changed_.Wait(&mu_);
      --idle_;
    }
    if (tasks_.empty()) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    mu_.Unlock();
    task();
    task = nullptr;  // what it holds must not outlive it by the length of the wait
    mu_.Lock();
  }
  mu_.Unlock();
}

}  // namespace xfer
