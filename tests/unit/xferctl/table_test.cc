#include "xferctl/table.h"

#include <gtest/gtest.h>

namespace xfer {
namespace {

TEST(TableTest, AlignsColumnsAndLeavesNoSpaceAtTheEnd) {
  Table table({{"PHASE"}, {"MS", Align::kRight}, {"BYTES", Align::kRight}, {"SLOWEST"}});
  table.AddRow({"plan", "0.05"});
  table.AddRow({"transfer", "1234.50", "8.04 GB", "engine 0 rank 1"});
  table.AddRow({"resume", "3.10", "", "x"});
  EXPECT_EQ(table.ToString(false),
            "PHASE          MS    BYTES  SLOWEST\n"
            "plan         0.05\n"
            "transfer  1234.50  8.04 GB  engine 0 rank 1\n"
            "resume       3.10           x\n");
}

TEST(TableTest, ColoursDoNotCountAsWidth) {
  Table table({{"A"}, {"B"}});
  table.AddRow({{"bad", Colour::kBad}, "1"});
  table.AddRow({"longer", "2"});
  EXPECT_EQ(table.ToString(true),
            "\x1b[2mA\x1b[0m       \x1b[2mB\x1b[0m\n"
            "\x1b[31mbad\x1b[0m     1\n"
            "longer  2\n");
}

TEST(HumanBytesTest, HasThreeDigitsAndAUnit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(1'000), "1.00 kB");
  EXPECT_EQ(HumanBytes(45'600), "45.6 kB");
  EXPECT_EQ(HumanBytes(789'000'000), "789 MB");
  EXPECT_EQ(HumanBytes(999'400), "999 kB");
  EXPECT_EQ(HumanBytes(999'600), "1.00 MB");
  EXPECT_EQ(HumanBytes(8'044'936'192), "8.04 GB");
  EXPECT_EQ(HumanBytes(2'000'000'000'000), "2.00 TB");
}

TEST(NumbersTest, MillisAndRates) {
  EXPECT_EQ(Millis(0), "0.00");
  EXPECT_EQ(Millis(1'234'500'000), "1234.50");
  EXPECT_EQ(GigabytesPerSecond(5'000'000'000, 2'000'000'000), "2.50");
  EXPECT_EQ(GigabytesPerSecond(0, 5), "-");
  EXPECT_EQ(GigabytesPerSecond(5, 0), "-");
}

}  // namespace
}  // namespace xfer
