#include "xferctl/run/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/numbers.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    std::string path = "/tmp/xfer-supervisor-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    supervisor_ = std::make_unique<Supervisor>(directory_, calls_);
  }
  ~SupervisorTest() override {
    supervisor_.reset();
    std::filesystem::remove_all(directory_);
  }

  // A shell that does `setup`, says that it is ready, with its pid, and then does `script`.
  // "--ready-fd 3" become its arguments.
  Supervisor::ChildId Shell(const std::string& name, const std::string& script,
                            const std::string& setup = ":") {
    const std::string all = setup + "; echo ready $$ >&3; exec 3>&-; " + script;
    auto child = supervisor_->Start({name, "sh", {"-c", all, "sh"}});
    EXPECT_TRUE(child.ok()) << child.status();
    auto words = supervisor_->WaitReady(*child, absl::Now() + kPatience);
    EXPECT_TRUE(words.ok()) << words.status();
    EXPECT_EQ(words->size(), 1u);
    EXPECT_TRUE(absl::SimpleAtoi(words->front(), &pid_));
    return *child;
  }
  bool Runs(pid_t pid) const { return kill(pid, 0) == 0 || errno != ESRCH; }

  CallCanceller calls_;
  std::string directory_;
  std::unique_ptr<Supervisor> supervisor_;
  pid_t pid_ = 0;
};

constexpr char kForever[] = "while :; do sleep 1; done";

TEST_F(SupervisorTest, GivesReadyWordsAndStopsWithASignal) {
  const auto child = Shell("good", "while :; do sleep 0.01; done", "trap 'exit 0' TERM");
  EXPECT_TRUE(Runs(pid_));
  const absl::Status stopped = supervisor_->Stop({child}, SIGTERM, kPatience);
  EXPECT_TRUE(stopped.ok()) << stopped;
  EXPECT_FALSE(Runs(pid_));
  EXPECT_TRUE(supervisor_->Interruption(absl::Milliseconds(150)).ok());  // it was asked to end
}

TEST_F(SupervisorTest, ADeathIsNoticedAndNamedWithItsLastWords) {
  Shell("xfer-agent node-1", "echo first; echo the disk is gone >&2; exit 3");
  const absl::Status reason = supervisor_->Interruption(kPatience);
  EXPECT_THAT(std::string(reason.message()),
              AllOf(HasSubstr("xfer-agent node-1 (pid "), HasSubstr("exited with status 3"),
                    HasSubstr("the disk is gone")));
  EXPECT_THAT(supervisor_->LogTail(), Contains("xfer-agent node-1 | first"));
  // Whatever is waited for ends with the reason.
  EXPECT_TRUE(calls_.WaitUntil(absl::Now() + kPatience));
  EXPECT_EQ(calls_.status(), reason);
  EXPECT_EQ(supervisor_->Start({"other", "sh", {}}).status(), reason);
}

TEST_F(SupervisorTest, AKilledChildIsNamedWithItsSignal) {
  Shell("xfer-coordinator", kForever);
  ASSERT_EQ(kill(pid_, SIGKILL), 0);
  EXPECT_THAT(std::string(supervisor_->Interruption(kPatience).message()),
              HasSubstr("signal 9 (Killed)"));
}

TEST_F(SupervisorTest, OfSeveralDeathsTheFirstStartedIsToBlame) {
  Shell("cause", kForever);
  const pid_t cause = pid_;
  Shell("consequence", kForever);
  kill(pid_, SIGKILL);
  kill(cause, SIGKILL);
  EXPECT_THAT(std::string(supervisor_->Interruption(kPatience).message()), HasSubstr("cause (pid"));
}

TEST_F(SupervisorTest, AnEndBeforeReadyEndsTheWait) {
  auto child = supervisor_->Start({"early", "sh", {"-c", "echo no such option; exit 2", "sh"}});
  ASSERT_TRUE(child.ok());
  const absl::Status status = supervisor_->WaitReady(*child, absl::Now() + kPatience).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("exited with status 2"), HasSubstr("no such option")));
}

TEST_F(SupervisorTest, ASilentChildIsADeadline) {
  auto child = supervisor_->Start({"silent", "sh", {"-c", kForever, "sh"}});
  ASSERT_TRUE(child.ok());
  const absl::Status status =
      supervisor_->WaitReady(*child, absl::Now() + absl::Milliseconds(100)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SupervisorTest, WhoIgnoresTheSignalIsKilled) {
  const auto child = Shell("stubborn", kForever, "trap '' TERM");
  const absl::Status status = supervisor_->Stop({child}, SIGTERM, absl::Milliseconds(200));
  EXPECT_THAT(std::string(status.message()), HasSubstr("stubborn"));
  EXPECT_FALSE(Runs(pid_));
}

TEST_F(SupervisorTest, DestructionLeavesNothing) {
  Shell("one", kForever, "trap '' TERM INT HUP");
  const pid_t first = pid_;
  Shell("two", kForever);
  kill(pid_, SIGSTOP);
  supervisor_.reset();
  EXPECT_FALSE(Runs(first));
  EXPECT_FALSE(Runs(pid_));
}

TEST_F(SupervisorTest, AnInterruptionEndsWaits) {
  auto child = supervisor_->Start({"silent", "sh", {"-c", kForever, "sh"}});
  ASSERT_TRUE(child.ok());
  supervisor_->Interrupt(absl::CancelledError("interrupted by Interrupt"));
  supervisor_->Interrupt(absl::CancelledError("later"));
  EXPECT_EQ(supervisor_->WaitReady(*child, absl::Now() + kPatience).status(),
            absl::CancelledError("interrupted by Interrupt"));
}

TEST_F(SupervisorTest, AMissingProgramIsNamed) {
  const absl::Status status = supervisor_->Start({"x", "xfer-no-such-program", {}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("xfer-no-such-program"));
}

}  // namespace
}  // namespace xfer
