#include "client/rank_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RankId Rollout(int32_t engine, int32_t rank) { return {Role::kRollout, engine, rank}; }

TEST(ParseNumberListTest, TakesNumbersAndRanges) {
  EXPECT_THAT(*ParseNumberList("0-3,7"), ElementsAre(0, 1, 2, 3, 7));
  EXPECT_THAT(*ParseNumberList("5,1-2"), ElementsAre(1, 2, 5));
  EXPECT_THAT(*ParseNumberList("4-4"), ElementsAre(4));
  EXPECT_THAT(*ParseNumberList(""), IsEmpty());
}

TEST(ParseNumberListTest, NamesWhatIsWrong) {
  for (const char* text :
       {"a", "1,", ",1", "1-", "-1", "1--2", "1.5", " 1", "0x3", "1000001", "99999999999"}) {
    EXPECT_EQ(ParseNumberList(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(ParseNumberList("0,3-x").status().message()), HasSubstr("\"3-x\""));
  EXPECT_THAT(std::string(ParseNumberList("3-1").status().message()),
              HasSubstr("ends before it starts"));
  EXPECT_THAT(std::string(ParseNumberList("0-4,3").status().message()),
              HasSubstr("3 stands twice"));
}

TEST(ParseRolloutListTest, TakesEnginesAndRanks) {
  EXPECT_THAT(*ParseRolloutList("0:0-1,1:0"),
              ElementsAre(Rollout(0, 0), Rollout(0, 1), Rollout(1, 0)));
  EXPECT_THAT(*ParseRolloutList("2:3,0"), ElementsAre(Rollout(2, 0), Rollout(2, 3)));
  EXPECT_THAT(*ParseRolloutList(""), IsEmpty());
}

TEST(ParseRolloutListTest, NamesWhatIsWrong) {
  EXPECT_THAT(std::string(ParseRolloutList("0-1").status().message()),
              HasSubstr("names no engine"));
  for (const char* text : {":0", "0:", "a:0", "0:0:0", "0:1-0", "0:0,0:0"}) {
    EXPECT_EQ(ParseRolloutList(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(FormatListTest, IsReadBack) {
  EXPECT_EQ(FormatNumberList({7, 0, 1, 2, 3}), "0-3,7");
  EXPECT_EQ(FormatNumberList({}), "");
  const std::vector<RankId> ranks = {Rollout(1, 0), Rollout(0, 1), Rollout(0, 0), Rollout(1, 2),
                                     Rollout(1, 3)};
  EXPECT_EQ(FormatRolloutList(ranks), "0:0-1,1:0,1:2-3");
  EXPECT_EQ(ParseRolloutList(FormatRolloutList(ranks))->size(), ranks.size());
}

}  // namespace
}  // namespace xfer
