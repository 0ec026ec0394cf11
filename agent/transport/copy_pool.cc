#include "agent/transport/copy_pool.h"

#include <utility>

namespace xfer {

CopyPool::CopyPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

CopyPool::~CopyPool() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void CopyPool::Submit(std::shared_ptr<Job> job) {
  absl::MutexLock lock(&mu_);
  const bool several = job->steps_ > 1;
  queue_.push_back(std::move(job));
  if (several) {
    wake_.SignalAll();
  } else {
    wake_.Signal();
  }
}

void CopyPool::Cancel(const void* owner) {
  std::vector<std::shared_ptr<Job>> idle;
  {
    absl::MutexLock lock(&mu_);
    std::deque<std::shared_ptr<Job>> kept;
    for (std::shared_ptr<Job>& job : queue_) {
      if (job->owner_ != owner) {
        kept.push_back(std::move(job));
        continue;
      }
      job->cancelled_ = true;
      job->steps_ = job->issued_;
      if (job->running_ == 0) idle.push_back(std::move(job));
    }
    queue_ = std::move(kept);
  }
  for (const std::shared_ptr<Job>& job : idle) job->Done(true);
}

void CopyPool::Work() {
  while (true) {
    std::shared_ptr<Job> job;
    uint64_t step = 0;
    {
      absl::MutexLock lock(&mu_);
      while (queue_.empty() && !stop_) wake_.Wait(&mu_);
      if (queue_.empty()) return;
      job = queue_.front();
      step = job->issued_++;
      ++job->running_;
      if (job->issued_ == job->steps_) queue_.pop_front();
    }
    job->Step(step);
    bool last = false;
    bool cancelled = false;
    {
      absl::MutexLock lock(&mu_);
      --job->running_;
      last = job->running_ == 0 && job->issued_ == job->steps_;
      cancelled = job->cancelled_;
    }
    if (last) job->Done(cancelled);
  }
}

}  // namespace xfer
