// Every rule of Validate() with the values that its message shows.
#include <functional>
#include <string>

#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const char* preset, const std::function<void(ModelSpec&)>& change,
                   const std::string& message) {
  absl::StatusOr<ModelSpec> spec = FindPreset(preset);
  ASSERT_TRUE(spec.ok()) << spec.status();
  change(*spec);
  const absl::Status status = Validate(*spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_THAT(status.message(), HasSubstr(message));
}

TEST(ValidateTest, TrainingGrid) {
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.train.tp = 0; }, "train.tp = 0 must be 1 to");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.train.world = -4; }, "train.world = -4");
  ExpectRefused(
      "GLM-5", [](ModelSpec& s) { s.train.world = 130; },
      "train.pp = 8 must divide train.world = 130");
  ExpectRefused(
      "GLM-5", [](ModelSpec& s) { s.train.cp = 3; },
      "train.tp * train.cp = 12 must divide ranks of a stage = 16");
  ExpectRefused(
      "GLM-5", [](ModelSpec& s) { s.train.etp = 2; },
      "train.etp * train.ep = 32 must divide ranks of a stage = 16");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.train.vocab_divisor = 0; }, "train.vocab_divisor = 0");
}

TEST(ValidateTest, PipelineStages) {
  ExpectRefused(
      "GLM-5", [](ModelSpec& s) { s.train.last_stage_layers.reset(); },
      "train.pp = 8 must divide num_hidden_layers = 78");
  ExpectRefused(
      "GLM-5", [](ModelSpec& s) { s.train.last_stage_layers = 7; },
      "train.pp - 1 = 7 must divide num_hidden_layers - train.last_stage_layers = 71");
  ExpectRefused(
      "GLM-5", [](ModelSpec& s) { s.train.last_stage_layers = 79; },
      "train.last_stage_layers = 79 must be 1 to 78");
  ExpectRefused(
      "GLM-5", [](ModelSpec& s) { s.train.last_stage_layers = 74; },
      "leaves 4 of num_hidden_layers = 78 for the other 7 stages");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.train.last_stage_layers = 35; },
      "must equal num_hidden_layers = 36");
}

TEST(ValidateTest, TrainingWidths) {
  ExpectRefused(
      "Qwen3-4B",
      [](ModelSpec& s) {
        s.train.tp = 16;
        s.train.cp = 1;
        s.train.world = 16;
      },
      "train.tp = 16 must divide num_key_value_heads = 8");
  ExpectRefused(
      "GLM-4.7-Flash", [](ModelSpec& s) { s.train.tp = 8; },
      "train.tp = 8 must divide num_attention_heads = 20");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.config.intermediate_size = 9729; },
      "train.tp = 2 must divide intermediate_size = 9729");
  ExpectRefused(
      "GLM-4.7-Flash", [](ModelSpec& s) { s.train.mtp_layers = 2; },
      "train.mtp_layers = 2 must be 0 to 1");
  ExpectRefused(
      "GLM-4.7-Flash", [](ModelSpec& s) { s.config.hidden_size = 2050; },
      "train.tp = 4 must divide hidden_size = 2050");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.train.ep = 2; }, "train.ep = 2 must be 1 to 1");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.train.etp = 2; }, "train.etp = 2 must be 1 to 1");
  ExpectRefused(
      "GLM-4.7-Flash", [](ModelSpec& s) { s.config.num_experts = 60; },
      "train.ep = 8 must divide the number of experts = 60");
  ExpectRefused(
      "Qwen3-30B-A3B",
      [](ModelSpec& s) {
        s.train.etp = 2;
        s.config.moe_intermediate_size = 769;
      },
      "train.etp = 2 must divide moe_intermediate_size = 769");
  ExpectRefused(
      "GLM-4.7-Flash", [](ModelSpec& s) { s.config.moe_intermediate_size = 1538; },
      "train.tp = 4 must divide moe_intermediate_size * n_shared_experts = 1538");
}

TEST(ValidateTest, RolloutGrid) {
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.rollout.gpus_per_engine = 0; },
      "rollout.gpus_per_engine = 0");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.rollout.world = 3; },
      "rollout.gpus_per_engine = 2 must divide rollout.world = 3");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.rollout.dp = 2; },
      "rollout.dp = 2 needs rollout.dp_attention");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.rollout.dp_lm_head = true; },
      "rollout.dp_lm_head needs rollout.dp_attention");
  ExpectRefused(
      "Kimi-K2-Instruct", [](ModelSpec& s) { s.rollout.dp = 5; },
      "rollout.dp = 5 must divide rollout.gpus_per_engine = 32");
  ExpectRefused(
      "Kimi-K2-Instruct", [](ModelSpec& s) { s.rollout.ep = 24; },
      "rollout.ep = 24 must divide rollout.gpus_per_engine = 32");
  ExpectRefused(
      "Kimi-K2-Instruct", [](ModelSpec& s) { s.rollout.moe_dense_tp = 2; },
      "rollout.moe_dense_tp = 2 must be 0 (unset), 1 or rollout.gpus_per_engine = 32");
}

TEST(ValidateTest, RolloutWidths) {
  ExpectRefused(
      "GLM-4.7-Flash", [](ModelSpec& s) { s.rollout.gpus_per_engine = 8; },
      "attention tensor parallel size = 8 must divide num_attention_heads = 20");
  ExpectRefused(
      "GLM-4.5-Air", [](ModelSpec& s) { s.config.num_key_value_heads = 12; },
      "attention tensor parallel size = 8 and num_key_value_heads = 12: one must divide");
  ExpectRefused(
      "GLM-4.5-Air",
      [](ModelSpec& s) {
        s.rollout.gpus_per_engine = 3;
        s.rollout.world = 3;
        s.rollout.ep = 1;
        s.config.num_key_value_heads = 3;
      },
      "ranks that share the embedding = 3 must divide vocab_size rounded up to 64 = 151552");
  ExpectRefused(
      "Qwen3-4B",
      [](ModelSpec& s) {
        s.config.intermediate_size = 9730;
        s.rollout.gpus_per_engine = 4;
      },
      "rollout.gpus_per_engine = 4 must divide intermediate_size = 9730");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.rollout.ep = 2; }, "rollout.ep = 2 must be 1 to 1");
  ExpectRefused(
      "GLM-5_4layer",
      [](ModelSpec& s) {
        s.config.num_experts = 260;
        s.train.ep = 4;
        s.train.world = 4;
      },
      "rollout.ep = 8 must divide the number of experts = 260");
  ExpectRefused(
      "Qwen3-30B-A3B",
      [](ModelSpec& s) {
        s.rollout.ep = 4;
        s.config.moe_intermediate_size = 769;
      },
      "rollout.gpus_per_engine / rollout.ep = 2 must divide moe_intermediate_size = 769");
  ExpectRefused(
      "GLM-5_4layer", [](ModelSpec& s) { s.config.moe_intermediate_size = 2044; },
      "rollout.gpus_per_engine = 8 must divide moe_intermediate_size * n_shared_experts");
}

TEST(ValidateTest, DenseLayersAreWholeWhereTheSettingSaysSo) {
  absl::StatusOr<ModelSpec> spec = FindPreset("GLM-5_4layer");
  ASSERT_TRUE(spec.ok());
  spec->config.intermediate_size = 12292;  // 4 divides it, 8 does not
  EXPECT_TRUE(Validate(*spec).ok()) << Validate(*spec);
  spec->rollout.moe_dense_tp = 0;
  EXPECT_THAT(Validate(*spec).message(), HasSubstr("must divide intermediate_size = 12292"));
}

TEST(ValidateTest, Cluster) {
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.nodes = 0; }, "nodes = 0");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.gpus_per_node = 7; },
      "train.world + rollout.world = 8 ranks need as many GPUs; nodes = 1 with "
      "gpus_per_node = 7 have 7");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.buffer_size_gb = 0; }, "buffer_size_gb = 0");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.transfer_timeout_s = 0; }, "transfer_timeout_s = 0");
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.name.clear(); }, "needs a name");
}

TEST(ValidateTest, NamesThatCannotNameADirectoryOrAJob) {
  for (const char* name : {"a/b", "../up", ".hidden", "with space", "new\nline"}) {
    ExpectRefused(
        "Qwen3-4B", [&](ModelSpec& s) { s.name = name; }, "must be 1 to 64 letters");
  }
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.name = std::string(65, 'a'); }, "must be 1 to 64 letters");
}

TEST(ValidateTest, TheModelIsNamed) {
  ExpectRefused(
      "Qwen3-4B", [](ModelSpec& s) { s.train.tp = 0; }, "model Qwen3-4B: ");
}

}  // namespace
}  // namespace xfer
