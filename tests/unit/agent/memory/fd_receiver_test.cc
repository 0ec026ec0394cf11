#include "agent/memory/fd_receiver.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

std::string Token(char fill) { return std::string(kFdTokenBytes, fill); }

UniqueFd MakeMemory() { return UniqueFd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)); }

ino_t Inode(int fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_ino;
}

size_t OpenFds() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

class FdReceiverTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(testing::TempDir(), "/xfer-fd-", getpid());
    std::filesystem::create_directories(directory_);
    options_.path = directory_ + "/a.fd";
    options_.clock = &clock_;
  }
  void TearDown() override {
    receiver_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Start() {
    auto started = FdReceiver::Start(options_);
    ASSERT_TRUE(started.ok()) << started.status();
    receiver_ = *std::move(started);
  }
  UniqueFd Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, options_.path.data(), options_.path.size());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static void Send(int socket, const std::string& bytes, const std::vector<int>& fds) {
    iovec data = {const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    ASSERT_EQ(sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // The answer's byte; -1: closed without one; -2: none within five seconds.
  static int Answer(int socket) {
    pollfd poller = {socket, POLLIN, 0};
    if (poll(&poller, 1, 5000) != 1) return -2;
    unsigned char answer = 0;
    return recv(socket, &answer, 1, 0) == 1 ? answer : -1;
  }

  std::string directory_;
  FakeClock clock_{1'000'000'000};
  FdReceiverOptions options_;
  std::unique_ptr<FdReceiver> receiver_;
};

TEST_F(FdReceiverTest, HandsOverWhatCame) {
  Start();
  const UniqueFd socket = Connect();
  const UniqueFd a = MakeMemory();
  const UniqueFd b = MakeMemory();
  Send(socket.get(), Token('a'), {a.get()});
  EXPECT_EQ(Answer(socket.get()), 0);
  Send(socket.get(), Token('b'), {b.get()});
  EXPECT_EQ(Answer(socket.get()), 0);
  EXPECT_EQ(receiver_->waiting(), 2u);
  absl::StatusOr<UniqueFd> taken = receiver_->Take(Token('b'));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(Inode(taken->get()), Inode(b.get()));
  EXPECT_NE(fcntl(taken->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(absl::IsNotFound(receiver_->Take(Token('b')).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(receiver_->Take("short").status()));
}

TEST_F(FdReceiverTest, TakesAMessageInPieces) {
  Start();
  const UniqueFd socket = Connect();
  const UniqueFd a = MakeMemory();
  Send(socket.get(), std::string(7, 'a'), {a.get()});
  Send(socket.get(), std::string(9, 'a'), {});
  EXPECT_EQ(Answer(socket.get()), 0);
  EXPECT_TRUE(receiver_->Take(Token('a')).ok());
}

TEST_F(FdReceiverTest, TokensExpire) {
  Start();
  const UniqueFd socket = Connect();
  const UniqueFd a = MakeMemory();
  Send(socket.get(), Token('a'), {a.get()});
  ASSERT_EQ(Answer(socket.get()), 0);
  clock_.Advance(absl::Seconds(61));
  const absl::Status status = receiver_->Take(Token('a')).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("longer than 1m"));
  EXPECT_EQ(receiver_->waiting(), 0u);
}

TEST_F(FdReceiverTest, RefusesMessagesWithoutForm) {
  Start();
  const UniqueFd a = MakeMemory();
  const size_t before = OpenFds();
  {
    const UniqueFd none = Connect();
    Send(none.get(), Token('n'), {});
    EXPECT_EQ(Answer(none.get()), 1);
    EXPECT_EQ(Answer(none.get()), -1);  // closed
    const UniqueFd two = Connect();
    Send(two.get(), Token('t'), {a.get(), a.get()});
    EXPECT_EQ(Answer(two.get()), 1);
    const UniqueFd many = Connect();
    Send(many.get(), Token('m'), std::vector<int>(16, a.get()));
    EXPECT_EQ(Answer(many.get()), 1);
    const UniqueFd split = Connect();
    Send(split.get(), std::string(3, 's'), {a.get()});
    Send(split.get(), std::string(13, 's'), {a.get()});
    EXPECT_EQ(Answer(split.get()), 1);
    const UniqueFd again = Connect();
    Send(again.get(), Token('d'), {a.get()});
    EXPECT_EQ(Answer(again.get()), 0);
    Send(again.get(), Token('d'), {a.get()});
    EXPECT_EQ(Answer(again.get()), 1);
  }
  EXPECT_EQ(receiver_->waiting(), 1u);
  // All refused descriptors were closed: one more is open than before, the one that waits.
  // Connections may take a moment to be noticed as closed, so a message is sent behind them first.
  const UniqueFd last = Connect();
  Send(last.get(), Token('l'), {a.get()});
  EXPECT_EQ(Answer(last.get()), 0);
  for (int i = 0; i < 500 && OpenFds() > before + 4; ++i) poll(nullptr, 0, 10);
  EXPECT_LE(OpenFds(), before + 4);  // `last` at both ends and two descriptors that wait
}

TEST_F(FdReceiverTest, LimitsWhatWaits) {
  options_.max_waiting = 2;
  Start();
  const UniqueFd socket = Connect();
  const UniqueFd a = MakeMemory();
  for (char c : {'a', 'b'}) {
    Send(socket.get(), Token(c), {a.get()});
    EXPECT_EQ(Answer(socket.get()), 0);
  }
  Send(socket.get(), Token('c'), {a.get()});
  EXPECT_EQ(Answer(socket.get()), 1);
  clock_.Advance(absl::Seconds(61));
  const UniqueFd later = Connect();
  Send(later.get(), Token('c'), {a.get()});
  EXPECT_EQ(Answer(later.get()), 0);
}

TEST_F(FdReceiverTest, RefusesAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  Start();
  // Even where the file's mode would let them in.
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  ASSERT_EQ(chmod(options_.path.c_str(), 0666), 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, options_.path.data(), options_.path.size());
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(10);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(11);
    char byte;
    _exit(recv(fd, &byte, 1, 0) == 0 ? 0 : 12);  // closed at once
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(FdReceiverTest, LetsOthersInOnlyByMode) {
  Start();
  struct stat info = {};
  ASSERT_EQ(stat(options_.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
  const std::string path = options_.path;
  receiver_.reset();
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

}  // namespace
}  // namespace xfer
