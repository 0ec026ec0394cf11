#include "agent/transport/verbs/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xfer::verbs {
namespace {

TEST(TuningTest, ParsesWhatIsSaidAndKeepsTheRest) {
  const auto tuning =
      ParseTuning("nics=mlx5_0+mlx5_1:2, chunk_bytes=512KiB,relaxed_ordering=off,stall_timeout=5s");
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_THAT(tuning->nics, ::testing::ElementsAre("mlx5_0", "mlx5_1:2"));
  EXPECT_EQ(tuning->chunk_bytes, 512u << 10);
  EXPECT_FALSE(tuning->relaxed_ordering);
  EXPECT_EQ(tuning->stall_timeout, absl::Seconds(5));
  EXPECT_EQ(tuning->queue_pairs, Tuning().queue_pairs);
}

TEST(TuningTest, TheTableShowsWhatItParses) {
  Tuning other;
  other.nics = {"a", "b:1"};
  other.queue_pairs = 7;
  other.chunk_bytes = 8192;
  other.relaxed_ordering = false;
  other.spin = absl::Microseconds(5);
  Tuning parsed;
  for (const Setting& setting : VerbsSettings()) {
    EXPECT_EQ(setting.parse(setting.show(other), parsed), absl::OkStatus()) << setting.name;
  }
  for (const Setting& setting : VerbsSettings()) {
    EXPECT_EQ(setting.show(parsed), setting.show(other)) << setting.name;
    EXPECT_FALSE(setting.meaning.empty());
  }
  EXPECT_EQ(CheckTuning(Tuning()), absl::OkStatus());
}

TEST(TuningTest, NamesWhatIsWrong) {
  const auto error = [](const char* text) {
    return std::string(ParseTuning(text).status().message());
  };
  EXPECT_THAT(error("chunks=1"),
              ::testing::HasSubstr("no setting \"chunks\"; there are nics, queue_pairs"));
  EXPECT_THAT(error("chunk_bytes=1MB"), ::testing::HasSubstr("\"1MB\" is not a size"));
  EXPECT_THAT(error("chunk_bytes=1"), ::testing::HasSubstr("chunk_bytes=1 is out of range"));
  EXPECT_THAT(error("chunk_bytes=99999999999GiB"), ::testing::HasSubstr("is not a size"));
  EXPECT_THAT(error("queue_pairs=0"), ::testing::HasSubstr("it takes 1 to 64"));
  EXPECT_THAT(error("list_requests=64,queue_requests=32"), ::testing::HasSubstr("it takes 64 to"));
  EXPECT_THAT(error("retries=8"), ::testing::HasSubstr("it takes 0 to 7"));
  EXPECT_THAT(error("nics=mlx5_0:900"), ::testing::HasSubstr("\"mlx5_0:900\""));
  EXPECT_THAT(error("relaxed_ordering=1"), ::testing::HasSubstr("on or off"));
  EXPECT_THAT(error("stall_timeout=0"), ::testing::HasSubstr("must be positive"));
  EXPECT_THAT(error("spin"), ::testing::HasSubstr("\"\" is not a time"));
}

}  // namespace
}  // namespace xfer::verbs
