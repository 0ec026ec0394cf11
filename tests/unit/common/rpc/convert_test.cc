#include "common/rpc/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/status.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

Transfer Example() {
  Transfer t;
  t.id = 7;
  t.tensor = 3;
  t.box = Box{{1, 2}, {3, 4}};
  t.source = 1;
  t.source_region = 2;
  t.destination = 4;
  t.destination_region = 5;
  t.copies = {Copy{100, 200, 8, {{3, 64, 32}, {2, 16, -8}}}, Copy{5, 6, 1, {}}};
  t.bytes = 49;
  t.conversion = {DType::kBF16, DType::kF32};
  t.waits_for = {1, 2};
  return t;
}

TEST(Convert, TransferSurvivesTheTrip) {
  const Transfer in = Example();
  const absl::StatusOr<Transfer> out = FromProto(ToProto(in));
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->id, in.id);
  EXPECT_EQ(out->tensor, in.tensor);
  EXPECT_EQ(out->box, in.box);
  EXPECT_EQ(out->source, in.source);
  EXPECT_EQ(out->source_region, in.source_region);
  EXPECT_EQ(out->destination, in.destination);
  EXPECT_EQ(out->destination_region, in.destination_region);
  EXPECT_EQ(out->copies, in.copies);
  EXPECT_EQ(out->bytes, in.bytes);
  EXPECT_EQ(out->conversion.from, in.conversion.from);
  EXPECT_EQ(out->conversion.to, in.conversion.to);
  EXPECT_EQ(out->waits_for, in.waits_for);
}

TEST(Convert, PieceSurvivesTheTrip) {
  const Piece in{.tensor = 9,
                 .box = Box{{0, 8}, {2, 2}},
                 .dtype = DType::kF32,
                 .region = 1,
                 .offset = 1u << 20,
                 .strides = {128, 4}};
  const absl::StatusOr<Piece> out = FromProto(ToProto(in));
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->box, in.box);
  EXPECT_EQ(out->strides, in.strides);
  EXPECT_EQ(out->offset, in.offset);
  EXPECT_EQ(out->dtype, in.dtype);
}

TEST(Convert, RefusesHostileMessages) {
  v1::Transfer t = ToProto(Example());
  t.mutable_box()->set_start(0, INT64_MAX);
  EXPECT_THAT(FromProto(t).status().message(), HasSubstr("wraps"));
  t = ToProto(Example());
  t.mutable_box()->add_extent(1);
  EXPECT_EQ(FromProto(t).status().code(), absl::StatusCode::kInvalidArgument);
  t = ToProto(Example());
  t.set_source(-1);
  EXPECT_THAT(FromProto(t).status().message(), HasSubstr("transfer 7"));
  t = ToProto(Example());
  for (int i = 0; i < 100; ++i) t.mutable_copies(0)->add_levels()->set_count(2);
  EXPECT_THAT(FromProto(t).status().message(), HasSubstr("102 levels"));
  t = ToProto(Example());
  t.set_to(static_cast<v1::DType>(99));
  EXPECT_THAT(FromProto(t).status().message(), HasSubstr("99"));

  v1::RankId id;
  EXPECT_FALSE(FromProto(id).ok());
  id.set_role(v1::ROLE_TRAINER);
  id.set_engine(1);
  EXPECT_FALSE(FromProto(id).ok());

  v1::TensorPlacement p;
  p.set_name("w");
  p.set_dtype(v1::DTYPE_BF16);
  EXPECT_THAT(FromProto(p).status().message(), HasSubstr("\"w\" has 0 dimensions"));
}

TEST(Status, CodesMeanTheSameOnBothSides) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status in(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(in)), in);
    EXPECT_EQ(FromOutcome(ToOutcome(in)), in);
  }
}

}  // namespace
}  // namespace xfer
