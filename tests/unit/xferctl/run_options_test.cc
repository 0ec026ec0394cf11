#include "xferctl/run/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "xferctl/exit.h"
#include "xferctl/run/preparation.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RunOptionsTest : public ::testing::Test {
 protected:
  RunOptionsTest() {
    flags_.model = {"Qwen3-4B", 4};
    context_.env = [this](const char* name) -> std::optional<std::string> {
      const auto found = environment_.find(name);
      if (found == environment_.end()) return std::nullopt;
      return found->second;
    };
  }
  absl::StatusOr<RunOptions> Resolve() { return ResolveRunOptions(context_, flags_); }
  void ExpectUsage(const std::string& part) {
    const absl::Status status = Resolve().status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  std::map<std::string, std::string> environment_;
  Context context_;
  RunFlags flags_;
};

TEST_F(RunOptionsTest, Defaults) {
  const RunOptions options = *Resolve();
  EXPECT_EQ(options.name, "Qwen3-4B-layers4");
  EXPECT_EQ(options.prepared_dir, "./ckpt/Qwen3-4B-layers4");
  EXPECT_EQ(options.steps, 3);
  EXPECT_TRUE(options.validate);
  EXPECT_EQ(options.job_spec.buffer_size_gb, 1.0);
  EXPECT_EQ(options.port, 0);
  EXPECT_TRUE(options.is_head());
  EXPECT_EQ(options.deadline, absl::Seconds(options.spec.transfer_timeout_s));
}

TEST_F(RunOptionsTest, EnvironmentAndFlagsThatWin) {
  environment_ = {{"CKPT_SAVE_DIR", "/data"},
                  {"SKIP_VALIDATION", "1"},
                  {"BUCKET_SIZE_GB", "2.5"},
                  {"XFER_LOG_DIR", "/logs"}};
  RunOptions options = *Resolve();
  EXPECT_EQ(options.prepared_dir, "/data/Qwen3-4B-layers4");
  EXPECT_FALSE(options.validate);
  EXPECT_EQ(options.job_spec.buffer_size_gb, 2.5);
  EXPECT_EQ(options.spec.buffer_size_gb, 1.0);  // the bucket does not change what is prepared
  EXPECT_EQ(options.log_dir, "/logs");
  flags_.ckpt_dir = "/flag";
  flags_.skip_validation = false;
  flags_.bucket_size_gb = 4;
  context_.log_dir = "/flag-logs";
  options = *Resolve();
  EXPECT_EQ(options.prepared_dir, "/flag/Qwen3-4B-layers4");
  EXPECT_TRUE(options.validate);
  EXPECT_EQ(options.job_spec.buffer_size_gb, 4.0);
  EXPECT_EQ(options.log_dir, "/flag-logs");
}

TEST_F(RunOptionsTest, BadValuesNameTheirVariable) {
  environment_ = {{"SKIP_VALIDATION", "yes"}};
  ExpectUsage("environment variable SKIP_VALIDATION is \"yes\"");
  environment_ = {{"BUCKET_SIZE_GB", "-3"}};
  ExpectUsage("environment variable BUCKET_SIZE_GB is \"-3\"");
}

TEST_F(RunOptionsTest, SeveralMachines) {
  flags_.node_rank = 1;
  flags_.nodes = 2;
  flags_.head_ip = "10.0.0.1";
  ExpectUsage("--insecure");
  flags_.insecure = true;
  RunOptions options = *Resolve();
  EXPECT_FALSE(options.is_head());
  EXPECT_EQ(options.head_address(), "10.0.0.1:7300");
  flags_.head_ip = "fd00::1";
  EXPECT_EQ(Resolve()->head_address(), "[fd00::1]:7300");
  flags_.head_ip = "head.example";
  ExpectUsage("--head-ip is \"head.example\"");
  flags_.head_ip = "";
  ExpectUsage("needs --head-ip");
  flags_.node_rank = 2;
  ExpectUsage("--node-rank is 2, but the run has 2 nodes");
  flags_.node_rank = 1;
  flags_.nodes = 0;  // the profile has one node
  ExpectUsage("--node-rank is 1, but the run has 1 nodes");
  flags_.node_rank.reset();
  flags_.head_ip = "127.0.0.1";
  ExpectUsage("give --node-rank");
}

TEST_F(RunOptionsTest, ALoopbackHeadNeedsNoConsent) {
  flags_.node_rank = 0;
  flags_.nodes = 2;
  flags_.head_ip = "127.0.0.1";
  flags_.port = 7555;
  EXPECT_EQ(Resolve()->head_address(), "127.0.0.1:7555");
}

TEST_F(RunOptionsTest, TooLittleMemoryNamesBothNumbersAndWhatHelps) {
  const RunOptions options = *Resolve();
  EXPECT_TRUE(CheckMemory(options, 1'000'000'000, 2, 2'000'000'000).ok());
  const absl::Status status = CheckMemory(options, 4'000'000'000, 2, 2'000'000'000);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ExitCodeOf(status), kExitFailed);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("4256000000 bytes"), HasSubstr("2000000000 bytes"), HasSubstr("--layers")));
}

}  // namespace
}  // namespace xfer
