#include "agent/memory/unix_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(testing::TempDir(), "/xfer-sock-", getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(UnixSocketTest, MakesTheDirectoryAndListens) {
  const std::string path = directory_ + "/new/deep/agent.sock";
  absl::StatusOr<UniqueFd> fd = ListenUnix(path);
  ASSERT_TRUE(fd.ok()) << fd.status();
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 07777, 0660u);
}

TEST_F(UnixSocketTest, ReplacesTheSocketOfTheDead) {
  const std::string path = directory_ + "/agent.sock";
  ASSERT_TRUE(ListenUnix(path).ok());  // closed at once, the file stays
  ASSERT_TRUE(std::filesystem::exists(path));
  absl::StatusOr<UniqueFd> fd = ListenUnix(path);
  EXPECT_TRUE(fd.ok()) << fd.status();
}

TEST_F(UnixSocketTest, LeavesTheLivingAlone) {
  const std::string path = directory_ + "/agent.sock";
  absl::StatusOr<UniqueFd> living = ListenUnix(path);
  ASSERT_TRUE(living.ok());
  const absl::Status status = ListenUnix(path).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  EXPECT_TRUE(absl::IsAlreadyExists(PrepareUnixSocket(path)));
}

TEST_F(UnixSocketTest, NamesWhatIsWrong) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "text";
  EXPECT_TRUE(absl::IsAlreadyExists(PrepareUnixSocket(file)));
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_TRUE(absl::IsInvalidArgument(PrepareUnixSocket(std::string(200, 'x'))));
  const absl::Status status = PrepareUnixSocket(file + "/below/agent.sock");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(file + "/below"));
}

}  // namespace
}  // namespace xfer
