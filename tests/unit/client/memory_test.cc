#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "client/host_memory.h"
#include "client/rank_client.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

TEST(HostMemoryTest, ReadsMemAvailable) {
  EXPECT_EQ(ParseMemAvailable("MemTotal:       100 kB\nMemAvailable:    42 kB\n"), 42u * 1024);
  const uint64_t unknown = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(ParseMemAvailable("MemTotal: 100 kB\n"), unknown);
  EXPECT_EQ(ParseMemAvailable("MemAvailable: much\n"), unknown);
}

TEST(HostMemoryTest, ThisMachineHasSome) {
  EXPECT_GT(AvailableMemoryBytes(), 1u << 20);
  EXPECT_LT(AvailableMemoryBytes(), uint64_t{1} << 60);
}

TEST(SharedMemoryTest, IsZeroedWritableAndSeenThroughItsDescriptor) {
  auto memory = SharedMemory::Create("test", 10'000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_EQ(memory->bytes().size(), 10'000u);
  EXPECT_EQ(memory->bytes()[9'999], std::byte{0});
  memory->bytes()[9'999] = std::byte{7};
  char seen = 0;
  ASSERT_EQ(pread(memory->fd(), &seen, 1, 9'999), 1);
  EXPECT_EQ(seen, 7);
}

TEST(SharedMemoryTest, CannotBeResizedUnderTheAgent) {
  auto memory = SharedMemory::Create("test", 10'000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_NE(ftruncate(memory->fd(), 4'096), 0);
  EXPECT_NE(ftruncate(memory->fd(), 20'000), 0);
  EXPECT_NE(fcntl(memory->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedMemoryTest, MovesKeepOneOwner) {
  auto a = SharedMemory::Create("a", 4'096);
  auto b = SharedMemory::Create("b", 8'192);
  ASSERT_TRUE(a.ok() && b.ok());
  a->bytes()[0] = std::byte{1};
  SharedMemory moved = *std::move(a);
  EXPECT_EQ(moved.bytes()[0], std::byte{1});
  moved = *std::move(b);
  EXPECT_EQ(moved.bytes().size(), 8'192u);
}

TEST(SharedMemoryTest, RefusesWhatTheMachineDoesNotHave) {
  const absl::Status status = SharedMemory::Create("huge", uint64_t{1} << 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1152921504606846976"));
  EXPECT_EQ(SharedMemory::Create("none", 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace xfer
