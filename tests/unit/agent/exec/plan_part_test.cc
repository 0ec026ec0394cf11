#include "agent/exec/plan_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/rpc/convert.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

v1::PlanPart Header(uint32_t transfers) {
  v1::PlanPart part;
  v1::PlanHeader& header = *part.mutable_header();
  header.set_plan_id(9);
  header.set_job("job");
  header.set_transfers(transfers);
  header.add_tensor_names("model.norm.weight");
  for (int i = 0; i < 3; ++i) {
    v1::PlanRank* rank = header.add_ranks();
    rank->mutable_id()->set_role(i == 0 ? v1::ROLE_TRAINER : v1::ROLE_ROLLOUT);
    rank->mutable_id()->set_rank(i);
    rank->set_node(i == 2 ? "b" : "a");
    rank->set_registration_id(100 + i);
  }
  return part;
}

v1::Transfer OneTransfer(uint32_t id, int source, int destination) {
  Transfer transfer;
  transfer.id = id;
  transfer.tensor = 0;
  transfer.box = Box::Whole({16});
  transfer.source = source;
  transfer.destination = destination;
  transfer.copies.emplace_back().run = 32;
  transfer.bytes = 32;
  return ToProto(transfer);
}

absl::StatusOr<std::shared_ptr<const PlanPart>> Build(const v1::PlanPart& part,
                                                      const std::string& node = "a") {
  PlanPartBuilder builder(9, node);
  if (absl::Status status = builder.Add(part); !status.ok()) return status;
  return builder.Finish();
}

TEST(PlanPart, SortsAndDescribes) {
  v1::PlanPart message = Header(3);
  *message.add_transfers() = OneTransfer(7, 0, 2);
  *message.add_transfers() = OneTransfer(3, 0, 1);
  *message.add_transfers() = OneTransfer(5, 0, 2);
  auto part = Build(message);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ((*part)->Find(3), 0u);
  EXPECT_EQ((*part)->Find(7), 2u);
  EXPECT_FALSE((*part)->Find(4).has_value());
  EXPECT_TRUE((*part)->transfers[0].receives);
  EXPECT_FALSE((*part)->transfers[1].receives);
  EXPECT_TRUE((*part)->transfers[1].sends);
  EXPECT_EQ((*part)->Describe((*part)->transfers[2].planned),
            "model.norm.weight from trainer 0 (node a) to engine 0 rank 2 (node b)");
}

TEST(PlanPart, RefusesWhatHasNoForm) {
  const auto message_of = [](const v1::PlanPart& part, const std::string& node = "a") {
    const absl::Status status = Build(part, node).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  v1::PlanPart cut = Header(2);
  *cut.add_transfers() = OneTransfer(1, 0, 1);
  EXPECT_THAT(message_of(cut), HasSubstr("1 of 2 transfers"));
  v1::PlanPart outside = Header(1);
  *outside.add_transfers() = OneTransfer(1, 0, 3);
  EXPECT_THAT(message_of(outside), HasSubstr("ranks 0 and 3"));
  v1::PlanPart twice = Header(2);
  *twice.add_transfers() = OneTransfer(1, 0, 1);
  *twice.add_transfers() = OneTransfer(1, 0, 1);
  EXPECT_THAT(message_of(twice), HasSubstr("twice"));
  v1::PlanPart elsewhere = Header(1);
  *elsewhere.add_transfers() = OneTransfer(1, 0, 1);
  EXPECT_THAT(message_of(elsewhere, "c"), HasSubstr("nothing to do with node c"));
  v1::PlanPart waits = Header(1);
  *waits.add_transfers() = OneTransfer(1, 0, 1);
  waits.mutable_transfers(0)->add_waits_for(8);
  EXPECT_THAT(message_of(waits), HasSubstr("waits for transfer 8"));
  v1::PlanPart wrapping = Header(1);
  *wrapping.add_transfers() = OneTransfer(1, 0, 1);
  wrapping.mutable_transfers(0)->mutable_copies(0)->set_source_offset(~uint64_t{0});
  message_of(wrapping);
  v1::PlanPart other = Header(0);
  other.mutable_header()->set_plan_id(8);
  EXPECT_THAT(message_of(other), HasSubstr("got plan 8"));
}

TEST(PlanPart, SampleTakesEdgesAndAboutOneInSixteen) {
  PartTransfer transfer;
  int taken = 0;
  bool differs = false;
  for (uint32_t id = 0; id < 16'000; ++id) {
    transfer.planned.id = id;
    const bool verified = IsVerified(v1::VERIFY_SAMPLE, 77, transfer);
    taken += verified ? 1 : 0;
    differs = differs || verified != IsVerified(v1::VERIFY_SAMPLE, 78, transfer);
  }
  EXPECT_NEAR(taken, 1000, 200);
  EXPECT_TRUE(differs);
  EXPECT_TRUE(IsVerified(v1::VERIFY_FULL, 77, transfer));
  EXPECT_FALSE(IsVerified(v1::VERIFY_NONE, 77, transfer));
  transfer.edge = true;
  for (uint32_t id = 0; id < 100; ++id) {
    transfer.planned.id = id;
    EXPECT_TRUE(IsVerified(v1::VERIFY_SAMPLE, 77, transfer));
  }
}

TEST(PlanPart, EdgesAreFirstAndLastOfEachPair) {
  v1::PlanPart message = Header(5);
  for (uint32_t id : {1, 2, 3}) *message.add_transfers() = OneTransfer(id, 0, 1);
  for (uint32_t id : {4, 5}) *message.add_transfers() = OneTransfer(id, 0, 2);
  auto part = Build(message);
  ASSERT_TRUE(part.ok());
  std::vector<bool> edges;
  for (const PartTransfer& transfer : (*part)->transfers) edges.push_back(transfer.edge);
  EXPECT_THAT(edges, testing::ElementsAre(true, false, true, true, true));
}

TEST(PlanPartCache, KeepsTheLatestUsed) {
  PlanPartCache cache(2);
  for (uint64_t id : {1, 2}) {
    auto part = std::make_shared<PlanPart>();
    part->plan_id = id;
    cache.Put(part);
  }
  EXPECT_NE(cache.Find(1), nullptr);
  auto third = std::make_shared<PlanPart>();
  third->plan_id = 3;
  cache.Put(third);
  EXPECT_NE(cache.Find(1), nullptr);
  EXPECT_EQ(cache.Find(2), nullptr);
  EXPECT_NE(cache.Find(3), nullptr);
  cache.Forget(3);
  EXPECT_EQ(cache.Find(3), nullptr);
}

}  // namespace
}  // namespace xfer
