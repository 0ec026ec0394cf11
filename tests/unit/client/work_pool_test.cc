#include "client/emulator/work_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace xfer {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(WorkPoolTest, DoesEveryItemOnce) {
  WorkPool pool(3);
  std::vector<std::atomic<int>> times(100);
  EXPECT_TRUE(pool.Run(times.size(),
                       [&](size_t i) {
                         ++times[i];
                         return absl::OkStatus();
                       })
                  .ok());
  for (const auto& count : times) EXPECT_EQ(count.load(), 1);
}

TEST(WorkPoolTest, TellsTheFirstFailureAndHowManyFollow) {
  WorkPool pool(3);
  const absl::Status status = pool.Run(10, [](size_t i) -> absl::Status {
    if (i < 4) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("item ", i));
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(std::string(status.message()), "item 4 (and 5 more)");
}

TEST(WorkPoolTest, NoItemsAreDoneAtOnce) {
  WorkPool pool(1);
  bool done = false;
  pool.Start(0, nullptr, [&](const absl::Status& status) { done = status.ok(); });
  EXPECT_TRUE(done);
}

TEST(WorkPoolTest, CancelSkipsWhatHasNotBegun) {
  WorkPool pool(1);
  absl::Notification running, go_on, ended;
  std::atomic<int> items{0};
  absl::Status result;
  pool.Start(
      1'000,
      [&](size_t) {
        if (items++ == 0) {
          running.Notify();
          go_on.WaitForNotification();
        }
        return absl::OkStatus();
      },
      [&](const absl::Status& status) {
        result = status;
        ended.Notify();
      });
  running.WaitForNotification();
  pool.Cancel();
  go_on.Notify();
  ended.WaitForNotification();
  EXPECT_EQ(items.load(), 1);
  EXPECT_EQ(result.code(), absl::StatusCode::kCancelled);
}

TEST(WorkPoolTest, DestructionFinishesWhatWasStarted) {
  std::atomic<int> items{0};
  std::atomic<int> jobs{0};
  {
    WorkPool pool(2);
    for (int job = 0; job < 3; ++job) {
      pool.Start(
          50,
          [&](size_t) {
            ++items;
            return absl::OkStatus();
          },
          [&](const absl::Status& status) { jobs += status.ok() ? 1 : 100; });
    }
  }
  EXPECT_EQ(items.load(), 150);
  EXPECT_EQ(jobs.load(), 3);
}

}  // namespace
}  // namespace xfer
