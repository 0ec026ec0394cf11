#include "agent/memory/mapped_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <string>

#include "common/base/unique_fd.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPage = 4096;

UniqueFd MakeMemory(uint64_t bytes, unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING) {
  UniqueFd fd(memfd_create("test", flags));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

TEST(MappedRegion, SharesMemoryWithItsOwner) {
  const UniqueFd fd = MakeMemory(4 * kPage);
  absl::StatusOr<MappedRegion> region = MappedRegion::Map(fd.get(), kPage, 2 * kPage);
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_EQ(region->bytes().size(), 2 * kPage);
  region->bytes()[5] = std::byte{42};
  char byte = 0;
  ASSERT_EQ(pread(fd.get(), &byte, 1, kPage + 5), 1);
  EXPECT_EQ(byte, 42);
}

TEST(MappedRegion, OutlivesTheDescriptor) {
  UniqueFd fd = MakeMemory(kPage);
  absl::StatusOr<MappedRegion> region = MappedRegion::Map(fd.get(), 0, kPage);
  ASSERT_TRUE(region.ok());
  fd.reset();
  region->bytes()[0] = std::byte{1};
  MappedRegion moved = *std::move(region);
  EXPECT_EQ(moved.bytes()[0], std::byte{1});
}

TEST(MappedRegion, CannotBeCutAfterwards) {
  const UniqueFd fd = MakeMemory(2 * kPage);
  ASSERT_TRUE(MappedRegion::Map(fd.get(), 0, 2 * kPage).ok());
  EXPECT_NE(ftruncate(fd.get(), kPage), 0);
  EXPECT_EQ(ftruncate(fd.get(), 4 * kPage), 0);  // growing is harmless
}

TEST(MappedRegion, NamesWhatIsWrong) {
  const UniqueFd fd = MakeMemory(2 * kPage);
  const auto message = [](const absl::StatusOr<MappedRegion>& region) {
    return std::string(region.status().message());
  };
  EXPECT_THAT(message(MappedRegion::Map(fd.get(), 0, 0)), HasSubstr("0 bytes"));
  EXPECT_THAT(message(MappedRegion::Map(fd.get(), 100, kPage)), HasSubstr("page size"));
  EXPECT_THAT(message(MappedRegion::Map(fd.get(), kPage, 2 * kPage)),
              HasSubstr("reaches beyond its file of 8192 bytes"));
  const uint64_t huge = std::numeric_limits<uint64_t>::max() - kPage + 1;
  EXPECT_THAT(message(MappedRegion::Map(fd.get(), huge, 2 * kPage)), HasSubstr("beyond"));
  EXPECT_THAT(message(MappedRegion::Map(fd.get(), kPage, huge)), HasSubstr("beyond"));
  EXPECT_FALSE(MappedRegion::Map(-1, 0, kPage).ok());
}

TEST(MappedRegion, RefusesWhatCannotBeSealed) {
  const UniqueFd unsealable = MakeMemory(kPage, MFD_CLOEXEC);
  absl::Status status = MappedRegion::Map(unsealable.get(), 0, kPage).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("MFD_ALLOW_SEALING"));

  std::string path = testing::TempDir() + "/xfer-region-XXXXXX";
  const UniqueFd file(mkstemp(path.data()));
  unlink(path.c_str());
  ASSERT_EQ(ftruncate(file.get(), kPage), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(MappedRegion::Map(file.get(), 0, kPage).status()));

  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const UniqueFd in(pipes[0]);
  const UniqueFd out(pipes[1]);
  EXPECT_TRUE(absl::IsInvalidArgument(MappedRegion::Map(in.get(), 0, kPage).status()));
}

TEST(MappedRegion, RefusesReadOnlyDescriptors) {
  const UniqueFd fd = MakeMemory(kPage);
  const UniqueFd read_only(open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDONLY));
  ASSERT_TRUE(read_only.valid());
  EXPECT_FALSE(MappedRegion::Map(read_only.get(), 0, kPage).ok());
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(MappedRegion::Map(read_only.get(), 0, kPage).ok());
}

}  // namespace
}  // namespace xfer
