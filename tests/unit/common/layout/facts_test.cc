#include "common/layout/facts.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelFacts Facts(const std::string& preset) {
  absl::StatusOr<ModelFacts> facts = DeriveFacts(*FindPreset(preset));
  EXPECT_TRUE(facts.ok()) << facts.status();
  return facts.ok() ? *std::move(facts) : ModelFacts();
}

std::vector<int64_t> Layers(const ModelFacts& facts) {
  std::vector<int64_t> out;
  for (const ModelFacts::Stage& stage : facts.stages) out.push_back(stage.layers);
  return out;
}

TEST(ModelFactsTest, AnUnevenPipelineWithReplicatedKvHeads) {
  const ModelFacts facts = Facts("Qwen3-235B-A22B-Instruct-2507");
  EXPECT_THAT(Layers(facts), ElementsAre(24, 24, 24, 22));
  EXPECT_EQ(facts.stages[3].first_layer, 72);
  EXPECT_EQ(facts.padded_vocab, 152064);
  EXPECT_EQ(facts.attention_tp, 32);
  EXPECT_EQ(facts.query_heads_a_rank, 2);
  EXPECT_EQ(facts.kv_heads_a_rank, 1);
  EXPECT_EQ(facts.kv_head_copies, 8);
  EXPECT_EQ(facts.rollout_experts_a_rank, 4);
  EXPECT_EQ(facts.moe_tp, 1);
  EXPECT_EQ(facts.engine_rank_bytes.least, 14962875392u);
  EXPECT_EQ(facts.engine_rank_bytes.most, 14962875392u);
}

TEST(ModelFactsTest, AttentionDpWithLatentAttention) {
  const ModelFacts facts = Facts("Kimi-K2-Instruct");
  EXPECT_THAT(Layers(facts), ElementsAre(8, 8, 8, 8, 8, 8, 8, 5));
  EXPECT_EQ(facts.padded_vocab, 163840);
  EXPECT_EQ(facts.ranks_a_stage, 32);
  EXPECT_EQ(facts.dp, 1);
  EXPECT_EQ(facts.expert_dp, 1);
  EXPECT_EQ(facts.train_experts_a_rank, 12);
  EXPECT_EQ(facts.engines, 8);
  EXPECT_EQ(facts.attention_tp, 4);
  EXPECT_EQ(facts.query_heads_a_rank, 16);
  EXPECT_EQ(facts.kv_heads_a_rank, 0);
  EXPECT_EQ(facts.rollout_experts_a_rank, 12);
}

TEST(ModelFactsTest, ADenseModelHasNoExperts) {
  const ModelFacts facts = Facts("Qwen3-4B");
  EXPECT_THAT(Layers(facts), ElementsAre(36));
  EXPECT_EQ(facts.stages[0].rank_bytes.most, 2u * 2011495936u);
  EXPECT_EQ(facts.engine_rank_bytes.most, 4022664192u);
  EXPECT_EQ(facts.kv_heads_a_rank, 4);
  EXPECT_EQ(facts.kv_head_copies, 1);
  EXPECT_EQ(facts.train_experts_a_rank, 0);
  EXPECT_EQ(facts.rollout_experts_a_rank, 0);
}

TEST(ModelFactsTest, StagesHoldAllLayersOfEveryPreset) {
  for (const ModelSpec& spec : Presets()) {
    const std::vector<int64_t> layers = Layers(Facts(spec.name));
    EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}),
              spec.config.num_hidden_layers)
        << spec.name;
  }
}

TEST(ModelFactsTest, AProfileThatDoesNotFitIsRefused) {
  ModelSpec spec = *FindPreset("Qwen3-4B");
  spec.train.tp = 3;
  EXPECT_THAT(std::string(DeriveFacts(spec).status().message()), HasSubstr("train.tp"));
}

}  // namespace
}  // namespace xfer
