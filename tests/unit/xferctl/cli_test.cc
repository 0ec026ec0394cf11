// The real programs: exit codes, messages, and what needs no coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace xfer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    std::string path = "/tmp/xfer-cli-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  ~CliTest() override { std::filesystem::remove_all(directory_); }

  // `command` is for the shell, which starts in a directory of the test's own without xfer's
  // variables.
  Result Shell(const std::string& command) {
    const std::string line =
        "cd " + directory_ +
        " && unset XFER_COORDINATOR XFER_LOG_DIR CKPT_SAVE_DIR SKIP_VALIDATION BUCKET_SIZE_GB; " +
        command + " 2>" + directory_ + "/stderr </dev/null";
    Result result;
    FILE* pipe = popen(line.c_str(), "r");
    EXPECT_NE(pipe, nullptr);
    std::array<char, 4'096> buffer;
    for (size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
      result.out.append(buffer.data(), got);
    }
    const int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream err(directory_ + "/stderr");
    result.err.assign(std::istreambuf_iterator<char>(err), {});
    return result;
  }
  Result Xferctl(const std::string& args) { return Shell(XFERCTL " " + args); }
  void ExpectError(const Result& result, int code, const std::string& part) {
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, AllOf(StartsWith("xferctl: "), HasSubstr(part)));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  std::string directory_;
};

TEST_F(CliTest, ListShowsEveryModelSorted) {
  const Result table = Xferctl("list");
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("Qwen3-4B"));
  EXPECT_THAT(table.out, Not(HasSubstr("\x1b")));  // not a terminal
  const json models = json::parse(Xferctl("list --output json").out);
  ASSERT_EQ(models.size(), 9u);
  for (size_t i = 1; i < models.size(); ++i)
    EXPECT_LT(models[i - 1].at("name"), models[i].at("name"));
}

TEST_F(CliTest, ModelsShowAndVersion) {
  EXPECT_THAT(Xferctl("models show Qwen3-4B").out, HasSubstr("Qwen3ForCausalLM"));
  EXPECT_EQ(json::parse(Xferctl("--output json models show Qwen3-4B").out).at("name"), "Qwen3-4B");
  ExpectError(Xferctl("models show Nope"), 2, "Nope");
  EXPECT_EQ(Xferctl("version").code, 0);
}

TEST_F(CliTest, PlanOfAModelNeedsNoCoordinator) {
  const Result plan = Xferctl("plan Qwen3-4B --transfers 1 --output json");
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_GT(json::parse(plan.out).at("stats").at("transfers"), 0);
}

TEST_F(CliTest, WrongUseIsTwo) {
  ExpectError(Xferctl(""), 2, "subcommand");
  ExpectError(Xferctl("frobnicate"), 2, "frobnicate");
  ExpectError(Xferctl("list --output xml"), 2, "xml");
  ExpectError(Xferctl("run"), 2, "model");
  ExpectError(Xferctl("run Nope"), 2, "Nope");
  ExpectError(Xferctl("run Qwen3-4B --layers 99"), 2, "--layers 99");
  ExpectError(Xferctl("run Qwen3-4B --steps 0"), 2, "--steps");
  ExpectError(Xferctl("run Qwen3-4B --nodes 9"), 2, "--nodes");
  ExpectError(Xferctl("run Qwen3-4B --node-rank 3 --head-ip 127.0.0.1"), 2, "--node-rank is 3");
  ExpectError(Xferctl("prepare Qwen3-4B"), 2, "--hf-dir DIR or --synthesize");
  ExpectError(Xferctl("sync --engines 0-"), 2, "--engines");
  ExpectError(Xferctl("--coordinator nowhere nodes"), 2, "--coordinator");
  ExpectError(Shell("SKIP_VALIDATION=maybe " XFERCTL " run Qwen3-4B"), 2,
              "SKIP_VALIDATION is \"maybe\"");
  ExpectError(Shell("BUCKET_SIZE_GB=0 " XFERCTL " run Qwen3-4B"), 2, "BUCKET_SIZE_GB is \"0\"");
  ExpectError(Shell("XFER_COORDINATOR=x " XFERCTL " nodes"), 2, "XFER_COORDINATOR");
}

TEST_F(CliTest, NoCoordinatorIsThree) {
  ExpectError(Xferctl("--coordinator 127.0.0.1:1 nodes"), 3, "no coordinator at 127.0.0.1:1");
  ExpectError(Shell("XFER_COORDINATOR=127.0.0.1:1 " XFERCTL " sync"), 3,
              "no coordinator at 127.0.0.1:1");
}

TEST_F(CliTest, PrepareWritesOnceAndRecognisesIt) {
  const std::string command = "prepare Qwen3-4B --synthesize --layers 1 --tiny --output json";
  const Result first = Xferctl(command);
  ASSERT_EQ(first.code, 0) << first.err;
  const json made = json::parse(first.out);
  EXPECT_EQ(made.at("dir"), "./ckpt/Qwen3-4B-layers1-tiny");
  EXPECT_FALSE(made.at("already_done"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/ckpt/Qwen3-4B-layers1-tiny/hf/config.json"));
  EXPECT_EQ(made.at("shards").size(), 4u);
  EXPECT_TRUE(json::parse(Xferctl(command).out).at("already_done"));
  // The variable names another place, the flag a third.
  const json other = json::parse(Shell("CKPT_SAVE_DIR=env " XFERCTL " " + command).out);
  EXPECT_EQ(other.at("dir"), "env/Qwen3-4B-layers1-tiny");
  const json flag =
      json::parse(Shell("CKPT_SAVE_DIR=env " XFERCTL " " + command + " --ckpt-dir flag").out);
  EXPECT_EQ(flag.at("dir"), "flag/Qwen3-4B-layers1-tiny");
}

TEST_F(CliTest, PrepareRefusesADirectoryThatIsNoCheckpoint) {
  ExpectError(Xferctl("prepare Qwen3-4B --hf-dir ./nothing"), 1, "nothing");
}

TEST_F(CliTest, RankEmulatorRefusesBadFlags) {
  const std::string rank = XFER_RANK " --agent-socket a --job j --prepared p ";
  for (const std::string& args :
       {rank + "--trainers x", rank + "--rollout 0", rank, std::string(XFER_RANK)}) {
    const Result result = Shell(args);
    EXPECT_EQ(result.code, 2) << args;
    EXPECT_THAT(result.err, StartsWith("xfer-rank: ")) << args;
  }
  EXPECT_THAT(Shell(rank + "--trainers 0").err, HasSubstr("p"));  // not prepared
}

}  // namespace
}  // namespace xfer
