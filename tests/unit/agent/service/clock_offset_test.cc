#include "agent/service/clock_offset.h"

#include <gtest/gtest.h>

namespace xfer {
namespace {

TEST(ClockOffset, BelievesTheShortestRoundTrip) {
  ClockOffset offset;
  EXPECT_EQ(offset.offset_ns(), 0);
  EXPECT_EQ(offset.round_trip_ns(), 0);
  // The other clock is 1000 ahead; there 30, back 10 (and 5 spent there).
  offset.Add(100, 1130, 1135, 145);
  EXPECT_EQ(offset.round_trip_ns(), 40);
  EXPECT_EQ(offset.offset_ns(), 1010);  // off by half of the asymmetry
  offset.Add(200, 1204, 1204, 208);
  EXPECT_EQ(offset.round_trip_ns(), 8);
  EXPECT_EQ(offset.offset_ns(), 1000);
  offset.Add(300, 1400, 1400, 500);  // a slow one does not spoil it
  EXPECT_EQ(offset.offset_ns(), 1000);
}

TEST(ClockOffset, ForgetsAfterSixteen) {
  ClockOffset offset;
  offset.Add(0, 1001, 1001, 2);
  for (int i = 0; i < 16; ++i) offset.Add(0, 2050, 2050, 100);  // the clock has drifted
  EXPECT_EQ(offset.offset_ns(), 2000);
  offset.Reset();
  EXPECT_EQ(offset.offset_ns(), 2000);  // until there is something new
  offset.Add(0, 3500, 3500, 1000);
  EXPECT_EQ(offset.offset_ns(), 3000);
}

TEST(ClockOffset, IgnoresNonsense) {
  ClockOffset offset;
  offset.Add(100, 0, 0, 50);
  offset.Add(0, 100, 50, 10);
  offset.Add(0, 0, 100, 10);
  EXPECT_EQ(offset.round_trip_ns(), 0);
}

}  // namespace
}  // namespace xfer
