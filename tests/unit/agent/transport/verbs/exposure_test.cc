// The receiver's description of a destination, and what the sender makes of a wrong one.
#include "agent/transport/verbs/exposure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/transport/test_transfers.h"

namespace xfer::verbs {
namespace {

v1::VerbsExposeReply Reply() {
  v1::VerbsExposeReply reply;
  v1::VerbsRegion& region = *reply.add_regions();
  region.set_base(1 << 20);
  region.set_bytes(10000);
  region.set_piece_bytes(4096);
  for (int rail = 0; rail < 2; ++rail) {
    v1::VerbsKeys& keys = *region.add_rails();
    for (uint32_t piece = 0; piece < 3; ++piece) keys.add_keys(10 * rail + piece);
  }
  return reply;
}

TEST(ExposureTest, ALayoutSurvivesTheWay) {
  const Transfer transfer =
      MakeTransfer(1, {Copy{9, 7, 10, {{5, 70, 100}, {3, 1000, 20}}}, Copy{8, 4000, 50, {}}});
  v1::VerbsTarget target;
  target.set_base((1 << 20) + 100);
  EncodeCopies(transfer, target);
  const auto regions = DecodeRegions(Reply(), 2);
  ASSERT_TRUE(regions.ok()) << regions.status();
  EXPECT_EQ((*regions)[0]->keys[1][2], 12u);
  const auto destination = DecodeTarget(target, *regions, transfer.bytes);
  ASSERT_TRUE(destination.ok()) << destination.status();
  ASSERT_EQ(destination->copies.size(), 2u);
  EXPECT_EQ(destination->copies[0].destination_offset, 7u);
  EXPECT_EQ(destination->copies[0].levels[1].destination_stride, 20);
  EXPECT_EQ(destination->base, (1u << 20) + 100);
}

TEST(ExposureTest, WhatLeavesItsRegionIsRefused) {
  const auto regions = *DecodeRegions(Reply(), 2);
  const auto decode = [&](uint64_t base, uint64_t offset, uint64_t run, uint32_t region = 0) {
    v1::VerbsTarget target;
    target.set_base(base);
    target.set_region(region);
    v1::VerbsCopy& copy = *target.add_copies();
    copy.set_offset(offset);
    copy.set_run(run);
    return DecodeTarget(target, regions, run).status();
  };
  const uint64_t base = 1 << 20;
  EXPECT_EQ(decode(base, 0, 10000), absl::OkStatus());
  EXPECT_FALSE(decode(base, 1, 10000).ok());
  EXPECT_FALSE(decode(base + 1, 0, 10000).ok());
  EXPECT_FALSE(decode(base - 1, 0, 10).ok());
  EXPECT_FALSE(decode(base + 10001, 0, 1).ok());
  EXPECT_FALSE(decode(base, ~uint64_t{0}, 10).ok());
  EXPECT_FALSE(decode(base, 0, 10, 1).ok());
}

TEST(ExposureTest, RegionsThatCannotBeAreRefused) {
  EXPECT_EQ(DecodeRegions(Reply(), 1).status().code(), absl::StatusCode::kInternal);
  v1::VerbsExposeReply reply = Reply();
  reply.mutable_regions(0)->set_piece_bytes(0);
  EXPECT_FALSE(DecodeRegions(reply, 2).ok());
  reply = Reply();
  reply.mutable_regions(0)->set_base(~uint64_t{0} - 100);
  EXPECT_FALSE(DecodeRegions(reply, 2).ok());
  reply = Reply();
  reply.mutable_regions(0)->mutable_rails(1)->add_keys(1);
  EXPECT_THAT(DecodeRegions(reply, 2).status().message(),
              ::testing::HasSubstr("4 keys for 3 pieces"));
}

}  // namespace
}  // namespace xfer::verbs
