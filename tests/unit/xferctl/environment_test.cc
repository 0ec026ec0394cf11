#include "xferctl/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "xferctl/exit.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

GetEnv Environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

TEST(StringSettingTest, FlagThenVariableThenFallback) {
  const GetEnv env = Environment({{"CKPT_SAVE_DIR", "/env"}, {"EMPTY", ""}});
  EXPECT_EQ(*StringSetting("/flag", "CKPT_SAVE_DIR", "./ckpt", env), "/flag");
  EXPECT_EQ(*StringSetting(std::nullopt, "CKPT_SAVE_DIR", "./ckpt", env), "/env");
  EXPECT_EQ(*StringSetting(std::nullopt, "EMPTY", "./ckpt", env), "./ckpt");
  EXPECT_EQ(*StringSetting(std::nullopt, "UNSET", "./ckpt", env), "./ckpt");
}

TEST(BoolSettingTest, TakesZeroAndOneOnly) {
  EXPECT_TRUE(*BoolSetting(std::nullopt, "SKIP_VALIDATION", false,
                           Environment({{"SKIP_VALIDATION", "1"}})));
  EXPECT_FALSE(
      *BoolSetting(std::nullopt, "SKIP_VALIDATION", true, Environment({{"SKIP_VALIDATION", "0"}})));
  EXPECT_FALSE(*BoolSetting(std::nullopt, "SKIP_VALIDATION", false, Environment({})));
  EXPECT_FALSE(
      *BoolSetting(false, "SKIP_VALIDATION", false, Environment({{"SKIP_VALIDATION", "1"}})));
  // The flag wins even over a value that could not be used.
  EXPECT_TRUE(
      *BoolSetting(true, "SKIP_VALIDATION", false, Environment({{"SKIP_VALIDATION", "maybe"}})));
  for (const char* bad : {"true", "2", " 1", "01", "-0"}) {
    const absl::Status status =
        BoolSetting(std::nullopt, "SKIP_VALIDATION", false, Environment({{"SKIP_VALIDATION", bad}}))
            .status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << bad;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("SKIP_VALIDATION"), HasSubstr(bad), HasSubstr("0 or 1")));
  }
}

TEST(PositiveSettingTest, TakesFiniteNumbersAboveZero) {
  const auto get = [](const char* value) {
    return PositiveSetting(std::nullopt, "--bucket-size-gb", "BUCKET_SIZE_GB", 64,
                           Environment({{"BUCKET_SIZE_GB", value}}));
  };
  EXPECT_EQ(**get("0.5"), 0.5);
  EXPECT_EQ(**get("64"), 64.0);
  EXPECT_FALSE(get("")->has_value());
  for (const char* bad : {"0", "-1", "nan", "inf", "64.1", "1GB", "x", "1e999"}) {
    const absl::Status status = get(bad).status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << bad;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("BUCKET_SIZE_GB"), HasSubstr(bad)));
  }
  EXPECT_EQ(**PositiveSetting(2.0, "--bucket-size-gb", "BUCKET_SIZE_GB", 64,
                              Environment({{"BUCKET_SIZE_GB", "x"}})),
            2.0);
  EXPECT_THAT(
      std::string(PositiveSetting(-2.0, "--bucket-size-gb", "BUCKET_SIZE_GB", 64, Environment({}))
                      .status()
                      .message()),
      HasSubstr("--bucket-size-gb is -2"));
}

}  // namespace
}  // namespace xfer
