#include <map>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Totals {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
};

bool IsMtp(const HfConfig& config, const std::string& name) {
  const std::string prefix = "model.layers.";
  return name.compare(0, prefix.size(), prefix) == 0 &&
         std::stoll(name.substr(prefix.size())) >= config.num_hidden_layers;
}

Totals Count(const ModelSpec& spec, bool with_mtp) {
  const absl::StatusOr<TensorTable> table = BuildTensorTable(spec.config);
  EXPECT_TRUE(table.ok()) << table.status();
  Totals out;
  for (const TensorInfo& info : table->all()) {
    if (!with_mtp && IsMtp(spec.config, info.name)) continue;
    ++out.tensors;
    out.elements += NumElements(info.shape);
    out.bytes += info.bytes();
  }
  return out;
}

ModelSpec Preset(const std::string& name) {
  const absl::StatusOr<ModelSpec> spec = FindPreset(name);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

TEST(PresetsTest, AreTheNineSortedByName) {
  std::vector<std::string> names;
  for (const ModelSpec& spec : Presets()) names.push_back(spec.name);
  EXPECT_THAT(names, ElementsAre("GLM-4.5-Air", "GLM-4.7-Flash", "GLM-5", "GLM-5_20layer",
                                 "GLM-5_4layer", "Kimi-K2-Instruct",
                                 "Qwen3-235B-A22B-Instruct-2507", "Qwen3-30B-A3B", "Qwen3-4B"));
}

TEST(PresetsTest, AnUnknownNameNamesTheKnownOnes) {
  const absl::Status status = FindPreset("Qwen4").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("\"Qwen4\""));
  EXPECT_THAT(status.message(), HasSubstr("Kimi-K2-Instruct"));
}

TEST(PresetsTest, AllAreValid) {
  for (const ModelSpec& spec : Presets()) {
    EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  }
}

// Element, tensor and byte totals that the models' publishers (or readers of the checkpoints)
// state. They pin every shape at once.
TEST(PresetsTest, TotalsAreThePublishedOnes) {
  struct Fact {
    std::string name;
    bool with_mtp;
    int64_t elements;
    int64_t tensors;  // 0: not published
    int64_t bytes;    // 0: not published
  };
  const Fact facts[] = {
      {"Qwen3-4B", true, 4022468096, 398, 0},
      {"Qwen3-30B-A3B", true, 30532122624, 18867, 61064245248},
      {"Qwen3-235B-A22B-Instruct-2507", true, 235093634560, 0, 0},
      {"GLM-4.5-Air", true, 110468824832, 0, 0},
      {"GLM-4.5-Air", false, 106852251264, 0, 0},
      {"GLM-4.7-Flash", true, 31221488576, 9703, 62442983168},
      {"GLM-4.7-Flash", false, 31221488576 - 1278094656, 9703 - 212, 0},
      {"GLM-5", true, 753864139008, 59870, 0},
      {"GLM-5", false, 743911218432, 59079, 1487822475264},
      // The published total is larger by 61 x 56, of unknown origin.
      {"Kimi-K2-Instruct", true, 1026408235864 - 61 * 56, 0, 0},
  };
  for (const Fact& fact : facts) {
    const Totals totals = Count(Preset(fact.name), fact.with_mtp);
    EXPECT_EQ(totals.elements, fact.elements) << fact.name;
    if (fact.tensors != 0) {
      EXPECT_EQ(totals.tensors, fact.tensors) << fact.name;
    }
    if (fact.bytes != 0) {
      EXPECT_EQ(totals.bytes, fact.bytes) << fact.name;
    }
  }
}

// The bytes of the checkpoint as published, whose scale tensors are counted apart from its weights.
TEST(PresetsTest, QuantisedKimiHasThePublishedScales) {
  std::string json = Preset("Kimi-K2-Instruct").config.raw;
  json.insert(
      json.rfind('}'),
      R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})");
  const absl::StatusOr<HfConfig> config = ParseHfConfig(json);
  ASSERT_TRUE(config.ok()) << config.status();
  const absl::StatusOr<TensorTable> table = BuildTensorTable(*config);
  ASSERT_TRUE(table.ok()) << table.status();
  int64_t scales = 0;
  int64_t scale_elements = 0;
  for (TensorId id = 0; id < table->size(); ++id) {
    const TensorInfo& info = (*table)[id];
    if (info.name.find("weight_scale_inv") == std::string::npos) continue;
    ++scales;
    scale_elements += NumElements(info.shape);
    EXPECT_EQ(info.dtype, DType::kF32);
    // Right behind its weight.
    EXPECT_EQ((*table)[id - 1].name + "_scale_inv", info.name);
    EXPECT_EQ((*table)[id - 1].dtype, DType::kF8E4M3);
  }
  EXPECT_EQ(scales, 69608);
  EXPECT_EQ(scale_elements, 1026470731056 - 1026408235864);
  const TensorId kv_a = table->Find("model.layers.3.self_attn.kv_a_proj_with_mqa.weight_scale_inv");
  ASSERT_GE(kv_a, 0);
  EXPECT_EQ((*table)[kv_a].shape, (Dims{5, 56}));
}

TEST(PresetsTest, ParallelismIsTheProfiles) {
  const ModelSpec kimi = Preset("Kimi-K2-Instruct");
  EXPECT_EQ(kimi.train.world, 256);
  EXPECT_EQ(kimi.train.last_stage_layers, 5);
  EXPECT_EQ(kimi.rollout.engines(), 8);
  EXPECT_EQ(kimi.rollout.attention_tp(), 4);
  EXPECT_FALSE(kimi.config.fp8_block.has_value());
  EXPECT_TRUE(kimi.config.correction_bias);

  const ModelSpec air = Preset("GLM-4.5-Air");
  // Asked for, but without effect at dp = 1.
  EXPECT_TRUE(air.rollout.dp_attention);
  EXPECT_FALSE(air.rollout.dp_attention_effective());
  EXPECT_EQ(air.rollout.attention_tp(), 8);
  EXPECT_EQ(air.buffer_size_broadcast_gb, 4.0);
  EXPECT_FALSE(air.config.qk_norm);
  EXPECT_TRUE(air.config.attention_bias);

  const ModelSpec flash = Preset("GLM-4.7-Flash");
  EXPECT_EQ(flash.train.mtp_layers, 1);
  EXPECT_EQ(flash.train.vocab_divisor, 64);
  EXPECT_TRUE(flash.config.mtp_stores_embed_and_head);

  const ModelSpec small = Preset("Qwen3-4B");
  EXPECT_TRUE(small.config.tie_word_embeddings);
  EXPECT_TRUE(small.config.qk_norm);
  EXPECT_FALSE(small.published.has_value());
  EXPECT_EQ(Preset("GLM-5").rollout.attention_tp(), 1);
  EXPECT_DOUBLE_EQ(Preset("GLM-5").published->rdma_ms, 8479.7);
}

}  // namespace
}  // namespace xfer
