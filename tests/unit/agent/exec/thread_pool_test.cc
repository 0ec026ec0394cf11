#include "agent/exec/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"

namespace xfer {
namespace {

TEST(ThreadPool, RunsTasksAtTheSameTimeUpToItsLimit) {
  ThreadPool pool(3);
  absl::BlockingCounter started(3);
  absl::Notification go;
  std::atomic<int> fourth{0};
  for (int i = 0; i < 3; ++i) {
    pool.Submit([&] {
      started.DecrementCount();
      go.WaitForNotification();
    });
  }
  pool.Submit([&] { fourth = 1; });
  started.Wait();
  EXPECT_EQ(fourth, 0);
  go.Notify();
}

TEST(ThreadPool, FinishesWhatIsQueued) {
  std::atomic<int> done{0};
  {
    ThreadPool pool(2);
    for (int i = 0; i < 100; ++i) {
      pool.Submit([&] { ++done; });
    }
  }
  EXPECT_EQ(done, 100);
}

TEST(ThreadPool, TasksMaySubmitTasks) {
  absl::Notification done;
  ThreadPool pool(1);
  pool.Submit([&] { pool.Submit([&] { done.Notify(); }); });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

}  // namespace
}  // namespace xfer
