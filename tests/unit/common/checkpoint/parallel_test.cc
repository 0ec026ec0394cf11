#include "common/checkpoint/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

TEST(ParallelFor, DoesEveryItemOnce) {
  for (const int threads : {-1, 0, 1, 2, 7}) {
    for (const size_t n : {0, 1, 5, 1000}) {
      std::vector<std::atomic<int>> seen(n);
      EXPECT_TRUE(ParallelFor(n, threads, [&](size_t i) {
                    ++seen[i];
                    return absl::OkStatus();
                  }).ok());
      for (const std::atomic<int>& s : seen) EXPECT_EQ(s, 1);
    }
  }
}

TEST(ParallelFor, StopsAtAnError) {
  std::atomic<int> done = 0;
  const absl::Status status = ParallelFor(1'000'000, 3, [&](size_t i) -> absl::Status {
    ++done;
    if (i >= 10) return absl::DataLossError(absl::StrCat("item ", i));
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_LT(done, 20);
}

}  // namespace
}  // namespace xfer
