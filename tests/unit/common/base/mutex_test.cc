// Guards the ThreadSanitizer build itself: if it could not see absl's locks, this would report a
// race.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace xfer {
namespace {

TEST(Mutex, OrdersPlainAccesses) {
  absl::Mutex mu;
  absl::CondVar changed;
  absl::Notification started;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      started.WaitForNotification();
      for (int i = 0; i < 1000; ++i) {
        absl::MutexLock lock(&mu);
        ++count;
        changed.Signal();
      }
    });
  }
  started.Notify();
  {
    absl::MutexLock lock(&mu);
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (count < 4000 && !changed.WaitWithDeadline(&mu, deadline)) {
    }
    EXPECT_EQ(count, 4000);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace xfer
