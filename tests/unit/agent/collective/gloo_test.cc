#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "agent/collective/collective.h"

namespace xfer {
namespace {

// Addresses of members that are threads of this process.
class Meeting {
 public:
  void Publish(int rank, std::string address) {
    absl::MutexLock lock(&mu_);
    addresses_[rank] = std::move(address);
    changed_.SignalAll();
  }
  absl::StatusOr<std::string> Await(int rank, absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    while (!addresses_.contains(rank)) {
      if (changed_.WaitWithDeadline(&mu_, deadline)) {
        return absl::DeadlineExceededError("member " + std::to_string(rank) + " did not come");
      }
    }
    return addresses_[rank];
  }

 private:
  absl::Mutex mu_;
  absl::CondVar changed_;
  std::map<int, std::string> addresses_;
};

class Seat final : public Rendezvous {
 public:
  Seat(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  void Publish(std::string address) override { meeting_.Publish(rank_, std::move(address)); }
  absl::StatusOr<std::string> AddressOf(int rank, absl::Time deadline) override {
    return meeting_.Await(rank, deadline);
  }

 private:
  Meeting& meeting_;
  const int rank_;
};

absl::Time In(int seconds) { return absl::Now() + absl::Seconds(seconds); }

std::vector<std::unique_ptr<Communicator>> Connect(Collective& gloo, int size) {
  Meeting meeting;
  std::vector<std::string> names;
  for (int r = 0; r < size; ++r) names.push_back("node" + std::to_string(r));
  std::vector<std::unique_ptr<Communicator>> members(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Seat seat(meeting, r);
      auto made = gloo.Connect(names, r, seat, In(30));
      if (made.ok()) members[r] = *std::move(made);
      EXPECT_TRUE(made.ok()) << made.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return members;
}

TEST(Gloo, EveryRootReachesEveryMember) {
  auto gloo = MakeGlooCollective("127.0.0.1");
  ASSERT_TRUE(gloo.ok()) << gloo.status();
  for (int size : {1, 2, 3, 5}) {
    auto members = Connect(**gloo, size);
    for (int root = 0; root < size; ++root) {
      constexpr size_t kBytes = (9 << 20) + 5;  // several pieces, the last one short
      std::vector<std::vector<std::byte>> data(size, std::vector<std::byte>(kBytes));
      for (size_t i = 0; i < kBytes; ++i) data[root][i] = std::byte((i * 31 + root) & 255);
      std::vector<std::thread> threads;
      for (int r = 0; r < size; ++r) {
        threads.emplace_back([&, r] {
          EXPECT_TRUE(members[r]->Broadcast(root, absl::MakeSpan(data[r]), In(30)).ok());
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (int r = 0; r < size; ++r) EXPECT_TRUE(data[r] == data[root]) << size << " " << r;
    }
  }
}

TEST(Gloo, AbortEndsAWaitAndDeadlineToo) {
  auto gloo = MakeGlooCollective("127.0.0.1");
  ASSERT_TRUE(gloo.ok()) << gloo.status();
  std::vector<std::byte> data(1 << 20);
  auto members = Connect(**gloo, 2);
  std::thread aborts([&] { members[1]->Abort(absl::CancelledError("enough")); });
  EXPECT_EQ(members[1]->Broadcast(0, absl::MakeSpan(data), In(30)), absl::CancelledError("enough"));
  aborts.join();
  auto others = Connect(**gloo, 2);
  EXPECT_EQ(others[1]->Broadcast(0, absl::MakeSpan(data), In(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace xfer
