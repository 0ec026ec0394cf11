// What the layout functions refuse, and how they say it.
#include <string>

#include "common/layout/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LayoutErrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<ModelSpec> spec = FindPreset("Qwen3-4B");
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *spec;
    const absl::StatusOr<TensorTable> table = BuildTensorTable(spec_.config);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = *table;
  }

  ModelSpec spec_;
  TensorTable table_;
};

TEST_F(LayoutErrorTest, ARankOutOfRange) {
  for (int rank : {-1, 4, 1 << 30}) {
    const absl::Status train = MegatronLayout(spec_, table_, rank).status();
    EXPECT_EQ(train.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(train.message(), AllOf(HasSubstr("training rank " + std::to_string(rank)),
                                       HasSubstr("Qwen3-4B"), HasSubstr("must be 0 to 3")));
  }
  for (int rank : {-1, 2}) {
    const absl::Status rollout = SglangLayout(spec_, table_, rank).status();
    EXPECT_EQ(rollout.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(rollout.message(), AllOf(HasSubstr("rollout rank " + std::to_string(rank)),
                                         HasSubstr("must be 0 to 1")));
  }
}

TEST_F(LayoutErrorTest, AProfileThatDoesNotFit) {
  spec_.train.tp = 3;
  spec_.train.cp = 1;
  spec_.train.world = 3;
  EXPECT_THAT(MegatronLayout(spec_, table_, 0).status().message(),
              HasSubstr("train.tp = 3 must divide num_key_value_heads = 8"));
  EXPECT_FALSE(SglangLayout(spec_, table_, 0).ok());
  EXPECT_FALSE(HuggingFaceLayout(spec_, table_).ok());
}

TEST_F(LayoutErrorTest, AQuantisedModelIsRefusedByName) {
  spec_.config.fp8_block = {{128, 128}};
  for (const absl::Status& status :
       {MegatronLayout(spec_, table_, 0).status(), SglangLayout(spec_, table_, 0).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("quantization_config"), HasSubstr("128 x 128"), HasSubstr("bf16")));
  }
}

TEST_F(LayoutErrorTest, ATableOfAnotherModelIsFound) {
  TensorTable other;
  other.Add("model.embed_tokens.weight", DType::kBF16, {151936, 2560});
  const absl::Status status = MegatronLayout(spec_, other, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("model.layers.0.input_layernorm.weight"));
}

}  // namespace
}  // namespace xfer
