#include <string>
#include <vector>

#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace xfer {
namespace {

std::vector<std::string> PresetNames() {
  std::vector<std::string> out;
  for (const ModelSpec& spec : Presets()) out.push_back(spec.name);
  return out;
}

class ShrinkTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<ModelSpec> full = FindPreset(GetParam());
    ASSERT_TRUE(full.ok()) << full.status();
    full_ = *std::move(full);
    absl::StatusOr<ModelSpec> small = Shrink(full_);
    ASSERT_TRUE(small.ok()) << small.status();
    small_ = *std::move(small);
  }
  ModelSpec full_;
  ModelSpec small_;
};

TEST_P(ShrinkTest, KeepsWhatIsNotAWidth) {
  const HfConfig& full = full_.config;
  const HfConfig& small = small_.config;
  EXPECT_EQ(small.architecture, full.architecture);
  EXPECT_EQ(small.num_hidden_layers, full.num_hidden_layers);
  EXPECT_EQ(small.num_attention_heads, full.num_attention_heads);
  EXPECT_EQ(small.num_key_value_heads, full.num_key_value_heads);
  EXPECT_EQ(small.num_experts, full.num_experts);
  EXPECT_EQ(small.n_shared_experts, full.n_shared_experts);
  EXPECT_EQ(small.index_n_heads, full.index_n_heads);
  EXPECT_EQ(small.first_k_dense_replace, full.first_k_dense_replace);
  EXPECT_EQ(small.num_nextn_predict_layers, full.num_nextn_predict_layers);
  EXPECT_EQ(small_.train.world, full_.train.world);
  EXPECT_EQ(small_.train.last_stage_layers, full_.train.last_stage_layers);
  EXPECT_EQ(small_.rollout.gpus_per_engine, full_.rollout.gpus_per_engine);
}

TEST_P(ShrinkTest, IsSmallWithOddWidths) {
  const HfConfig& c = small_.config;
  EXPECT_LE(c.hidden_size, 64);
  EXPECT_LE(c.moe_intermediate_size, 64);
  EXPECT_LE(c.intermediate_size, 256);
  EXPECT_LE(c.vocab_size, 4096);
  EXPECT_NE(c.hidden_size & (c.hidden_size - 1), 0);
  EXPECT_NE(c.vocab_size & (c.vocab_size - 1), 0);
  EXPECT_NE(c.hidden_size, c.intermediate_size);
  EXPECT_NE(c.hidden_size, c.moe_intermediate_size);
}

TEST_P(ShrinkTest, HasATrueConfigAgain) {
  const absl::StatusOr<HfConfig> again = ParseHfConfig(small_.config.raw);
  ASSERT_TRUE(again.ok()) << again.status();
  const nlohmann::json full = nlohmann::json::parse(full_.config.raw);
  const nlohmann::json small = nlohmann::json::parse(small_.config.raw);
  EXPECT_EQ(full.size(), small.size());
  if (small.contains("qk_head_dim")) {
    EXPECT_EQ(small["qk_head_dim"].get<int64_t>(),
              small_.config.qk_nope_head_dim + small_.config.qk_rope_head_dim);
  }
  EXPECT_TRUE(Validate(small_).ok()) << Validate(small_);
}

TEST_P(ShrinkTest, ASmallModelStaysAsItIs) {
  const absl::StatusOr<ModelSpec> again = Shrink(small_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToJson(*again), ToJson(small_));
}

INSTANTIATE_TEST_SUITE_P(All, ShrinkTest, ::testing::ValuesIn(PresetNames()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

TEST(ShrinkRefusesTest, AProfileThatDoesNotFit) {
  absl::StatusOr<ModelSpec> spec = FindPreset("Qwen3-4B");
  ASSERT_TRUE(spec.ok());
  spec->train.tp = 3;
  EXPECT_EQ(Shrink(*spec).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace xfer
