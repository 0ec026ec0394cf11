#include "common/checkpoint/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace xfer {

absl::Status ParallelFor(size_t n, int threads, absl::FunctionRef<absl::Status(size_t)> fn) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  absl::Mutex mu;
  absl::Status first;  // guarded by mu
  const auto work = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= n) return;
      absl::Status status = fn(i);
      if (status.ok()) continue;
      absl::MutexLock lock(&mu);
      if (first.ok()) first = std::move(status);
      failed.store(true, std::memory_order_relaxed);
    }
  };
  std::vector<std::thread> helpers;
  const size_t wanted = std::min(n, static_cast<size_t>(std::max(threads, 1)));
  for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return first;
}

}  // namespace xfer
