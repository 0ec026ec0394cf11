#include "agent/memory/rank_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/unique_fd.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

std::vector<MappedRegion> MakeRegions(const char* name = "rank-table-test") {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), 8192), 0);
  std::vector<MappedRegion> regions;
  absl::StatusOr<MappedRegion> region = MappedRegion::Map(fd.get(), 0, 8192);
  EXPECT_TRUE(region.ok()) << region.status();
  regions.push_back(*std::move(region));
  return regions;
}

bool IsMapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, name)) return true;
  }
  return false;
}

LocalRankInfo Info(int32_t rank, int64_t pid = 7) {
  LocalRankInfo info;
  info.job = "job";
  info.id = {Role::kTrainer, 0, rank};
  info.pid = pid;
  return info;
}

class CountingTransport final : public Transport {
 public:
  absl::string_view name() const override { return "counting"; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress&, absl::Time) override {
    return absl::UnimplementedError("none");
  }
  absl::Status Register(const Memory&) override {
    ++registered;
    return refuse ? absl::ResourceExhaustedError("no more") : absl::OkStatus();
  }
  void Unregister(const Memory&) override { ++unregistered; }
  int registered = 0;
  int unregistered = 0;
  bool refuse = false;
};

TEST(RankTable, FindsByIdAndRank) {
  RankTable table(100, {});
  absl::StatusOr<RankPin> rank = table.Add(Info(3), MakeRegions(), 5);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ((*rank)->registration_id(), 100u);
  EXPECT_EQ((*rank)->ready_version(), 5);
  EXPECT_EQ((*rank)->region_bytes(), 8192u);
  EXPECT_EQ(table.Find(100), *rank);
  EXPECT_EQ(table.Find("job", {Role::kTrainer, 0, 3}), *rank);
  EXPECT_EQ(table.Find("other", {Role::kTrainer, 0, 3}), nullptr);
  EXPECT_EQ(table.Find(101), nullptr);
  EXPECT_EQ(table.All().size(), 1u);
}

TEST(RankTable, NamesTheHolderOfADoubledRank) {
  RankTable table(1, {});
  ASSERT_TRUE(table.Add(Info(3, 4711), MakeRegions(), 0).ok());
  const absl::Status status = table.Add(Info(3, 4712), MakeRegions(), 0).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("process 4711"));
}

TEST(RankTable, PinsKeepMemoryMapped) {
  RankTable table(1, {});
  RankPin pin = *table.Add(Info(0), MakeRegions("pinned-region"), 0);
  EXPECT_FALSE(pin->gone());
  table.Remove(pin->registration_id());
  EXPECT_TRUE(pin->gone());
  EXPECT_EQ(table.Find("job", pin->info().id), nullptr);
  EXPECT_TRUE(IsMapped("pinned-region"));
  pin->region(0).base[100] = std::byte{1};  // a transfer that is still writing
  pin.reset();
  EXPECT_FALSE(IsMapped("pinned-region"));
}

TEST(RankTable, ReplaceMakesTheOldOneGo) {
  RankTable table(1, {});
  const RankPin old = *table.Add(Info(0), MakeRegions(), 0);
  absl::StatusOr<RankPin> fresh = table.Replace(old->registration_id(), Info(0), MakeRegions(), 1);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_TRUE(old->gone());
  EXPECT_NE((*fresh)->registration_id(), old->registration_id());
  EXPECT_EQ(table.Find("job", old->info().id), *fresh);
  EXPECT_EQ(table.Find(old->registration_id()), nullptr);
  EXPECT_TRUE(
      absl::IsNotFound(table.Replace(old->registration_id(), Info(0), MakeRegions(), 1).status()));
  // Not in the name of another rank.
  EXPECT_TRUE(absl::IsNotFound(
      table.Replace((*fresh)->registration_id(), Info(1), MakeRegions(), 1).status()));
  EXPECT_FALSE((*fresh)->gone());
}

TEST(RankTable, TellsTransports) {
  CountingTransport transport;
  RankTable table(1, {&transport});
  RankPin pin = *table.Add(Info(0), MakeRegions(), 0);
  EXPECT_EQ(transport.registered, 1);
  table.Remove(pin->registration_id());
  EXPECT_EQ(transport.unregistered, 0);
  pin.reset();
  EXPECT_EQ(transport.unregistered, 1);
  transport.refuse = true;
  const absl::Status status = table.Add(Info(0), MakeRegions(), 0).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("trainer 0"));
}

}  // namespace
}  // namespace xfer
