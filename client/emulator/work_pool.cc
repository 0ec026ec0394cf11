#include "client/emulator/work_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace xfer {

WorkPool::WorkPool(int threads) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back(&WorkPool::Work, this);
}

WorkPool::~WorkPool() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkPool::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
}

void WorkPool::Start(size_t items, std::function<absl::Status(size_t)> each,
                     std::function<void(const absl::Status&)> done) {
  if (items == 0) {
    done(absl::OkStatus());
    return;
  }
  auto job = std::make_shared<Job>();
  job->each = std::move(each);
  job->done = std::move(done);
  job->items = items;
  absl::MutexLock lock(&mu_);
  jobs_.push_back(std::move(job));
}

absl::Status WorkPool::Run(size_t items, std::function<absl::Status(size_t)> each) {
  absl::Notification ended;
  absl::Status result;
  Start(items, std::move(each), [&](const absl::Status& status) {
    result = status;
    ended.Notify();
  });
  ended.WaitForNotification();
  return result;
}

void WorkPool::Work() {
  while (true) {
    std::shared_ptr<Job> job;
    size_t item = 0;
    bool skip = false;
    {
      absl::MutexLock lock(&mu_);
      const auto something = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || !jobs_.empty();
      };
      mu_.Await(absl::Condition(&something));
      if (jobs_.empty()) return;
      job = jobs_.front();
      item = job->next++;
      ++job->running;
      skip = cancelled_;
      if (skip) job->next = job->items;
      if (job->next == job->items) jobs_.pop_front();
    }
    const absl::Status status =
        skip ? absl::CancelledError("stopped before it was done") : job->each(item);
    absl::Status result;
    {
      absl::MutexLock lock(&mu_);
      if (!status.ok()) {
        if (job->failures++ == 0 || item < job->worst) {
          job->worst = item;
          job->status = status;
        }
      }
      if (--job->running > 0 || job->next < job->items) continue;
      result = job->status;
      if (job->failures > 1 && !absl::IsCancelled(result)) {
        result = absl::Status(
            result.code(), absl::StrCat(result.message(), " (and ", job->failures - 1, " more)"));
      }
    }
    job->done(result);
  }
}

}  // namespace xfer
