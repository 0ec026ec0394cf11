// What ParseHfConfig takes and refuses.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace xfer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json Preset(const char* name) {
  const absl::StatusOr<ModelSpec> spec = FindPreset(name);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return json::parse(spec->config.raw);
}

absl::StatusOr<HfConfig> With(const char* preset, const std::function<void(json&)>& change) {
  json config = Preset(preset);
  change(config);
  return ParseHfConfig(config.dump());
}

void ExpectRefused(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(message));
}

TEST(ParseHfConfigTest, KeepsTheDocumentAndIgnoresWhatItDoesNotKnow) {
  const absl::StatusOr<HfConfig> config = With("Qwen3-4B", [](json& c) {
    c["transformers_version"] = "4.51.0";
    c["sliding_window"] = nullptr;
    c["auto_map"] = {{"AutoConfig", "x.Y"}};
  });
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(json::parse(config->raw)["transformers_version"], "4.51.0");
  EXPECT_EQ(config->num_key_value_heads, 8);
  EXPECT_FALSE(config->is_moe());
  EXPECT_FALSE(config->is_mla());
}

TEST(ParseHfConfigTest, TakesEitherNameOfTheType) {
  const auto type = [](const char* field, const char* value) {
    return With("Qwen3-4B", [&](json& c) {
      c.erase("torch_dtype");
      c[field] = value;
    });
  };
  EXPECT_EQ(type("dtype", "float16")->dtype, DType::kF16);
  EXPECT_EQ(type("torch_dtype", "float32")->dtype, DType::kF32);
  ExpectRefused(type("dtype", "int8").status(), "dtype is \"int8\"; it must be bfloat16");
}

TEST(ParseHfConfigTest, ReadsBlockQuantisation) {
  const auto quantised = [](const json& q) {
    return With("Kimi-K2-Instruct", [&](json& c) { c["quantization_config"] = q; });
  };
  const absl::StatusOr<HfConfig> fp8 =
      quantised({{"quant_method", "fp8"}, {"weight_block_size", {128, 64}}});
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_EQ(*fp8->fp8_block, (std::array<int64_t, 2>{128, 64}));
  ExpectRefused(quantised({{"quant_method", "gptq"}}).status(), "quant_method is \"gptq\"");
  ExpectRefused(quantised({{"quant_method", "fp8"}}).status(), "weight_block_size is missing");
  ExpectRefused(quantised({{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}).status(),
                "weight_block_size is [128,0]");
  ExpectRefused(quantised(7).status(), "quantization_config is 7; it must be an object");
}

TEST(ParseHfConfigTest, AnUnknownArchitectureNamesTheKnownOnes) {
  const absl::Status status =
      With("Qwen3-4B", [](json& c) { c["architectures"] = {"LlamaForCausalLM"}; }).status();
  ExpectRefused(status, "unknown architecture \"LlamaForCausalLM\"");
  EXPECT_THAT(status.message(), AllOf(HasSubstr("Qwen3ForCausalLM"), HasSubstr("GlmMoeDsa")));
  ExpectRefused(With("Qwen3-4B", [](json& c) { c.erase("architectures"); }).status(),
                "architectures is missing");
  ExpectRefused(With("Qwen3-4B", [](json& c) { c["architectures"] = json::array(); }).status(),
                "architectures is []");
}

TEST(ParseHfConfigTest, EveryShapeFieldIsNeededAndBounded) {
  for (const char* preset : {"Qwen3-4B", "GLM-5", "GLM-4.5-Air"}) {
    const bool mla = std::string(preset) == "GLM-5";
    std::vector<std::string> fields = {"num_hidden_layers", "hidden_size", "intermediate_size",
                                       "vocab_size", "num_attention_heads"};
    if (mla) {
      fields.insert(fields.end(),
                    {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                     "v_head_dim", "index_n_heads", "index_head_dim", "n_routed_experts",
                     "moe_intermediate_size", "first_k_dense_replace"});
    } else {
      fields.insert(fields.end(), {"num_key_value_heads", "head_dim"});
    }
    for (const std::string& field : fields) {
      ExpectRefused(With(preset, [&](json& c) { c.erase(field); }).status(),
                    "field " + field + " is missing");
      ExpectRefused(With(preset, [&](json& c) { c[field] = nullptr; }).status(), field);
      ExpectRefused(With(preset, [&](json& c) { c[field] = -1; }).status(), field + " is -1");
      ExpectRefused(With(preset, [&](json& c) { c[field] = 1.5; }).status(), field + " is 1.5");
      ExpectRefused(With(preset, [&](json& c) { c[field] = "8"; }).status(), field + " is \"8\"");
      ExpectRefused(With(preset, [&](json& c) { c[field] = 18446744073709551615ULL; }).status(),
                    field + " is 18446744073709551615");
    }
  }
}

TEST(ParseHfConfigTest, WhatIsNotSupportedIsRefusedByName) {
  ExpectRefused(With("Qwen3-4B", [](json& c) { c["attention_bias"] = true; }).status(),
                "attention_bias is true; it must be false for Qwen3ForCausalLM");
  ExpectRefused(With("Qwen3-30B-A3B", [](json& c) { c["mlp_only_layers"] = {3}; }).status(),
                "mlp_only_layers is [3]");
  ExpectRefused(With("Qwen3-30B-A3B", [](json& c) { c["decoder_sparse_step"] = 2; }).status(),
                "decoder_sparse_step is 2");
  ExpectRefused(With("Kimi-K2-Instruct", [](json& c) { c["moe_layer_freq"] = 2; }).status(),
                "moe_layer_freq is 2");
  ExpectRefused(With("Qwen3-4B", [](json& c) { c["num_key_value_heads"] = 5; }).status(),
                "a divisor of num_attention_heads (32)");
  ExpectRefused(With("GLM-5", [](json& c) { c["index_head_dim"] = 127; }).status(),
                "index_head_dim is 127; it must be even");
  ExpectRefused(With("GLM-5",
                     [](json& c) {
                       c["n_routed_experts"] = 8192;
                       c["num_hidden_layers"] = 1000;
                     })
                    .status(),
                "at most 1048576");
}

TEST(ParseHfConfigTest, BadDocuments) {
  ExpectRefused(ParseHfConfig("").status(), "config.json is not valid JSON");
  ExpectRefused(ParseHfConfig("{\"a\": }").status(), "column 7");
  ExpectRefused(ParseHfConfig("[1]").status(), "must be a JSON object, not array");
  ExpectRefused(ParseHfConfig(std::string(100000, '[')).status(), "");
  ExpectRefused(
      ParseHfConfig("{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}").status(),
      "nested deeper than 64");
  ExpectRefused(ParseHfConfig(std::string(2 << 20, ' ')).status(), "at most 1048576");
  ExpectRefused(ParseHfConfig("{\"a\": \"\xff\"}").status(), "not valid JSON");
}

TEST(KeepLayersTest, CutsTheModelAndItsMtpLayers) {
  const absl::StatusOr<ModelSpec> full = FindPreset("GLM-5");
  ASSERT_TRUE(full.ok());
  const absl::StatusOr<HfConfig> cut = KeepLayers(full->config, 4);
  ASSERT_TRUE(cut.ok()) << cut.status();
  const absl::StatusOr<TensorTable> table = BuildTensorTable(*cut);
  ASSERT_TRUE(table.ok()) << table.status();
  // The same cut is a preset of its own.
  const absl::StatusOr<ModelSpec> preset = FindPreset("GLM-5_4layer");
  const absl::StatusOr<TensorTable> preset_table = BuildTensorTable(preset->config);
  ASSERT_EQ(table->size(), preset_table->size());
  EXPECT_EQ(table->total_bytes(), preset_table->total_bytes());
  EXPECT_EQ(json::parse(cut->raw)["num_hidden_layers"], 4);
}

TEST(KeepLayersTest, OutOfRange) {
  const absl::StatusOr<ModelSpec> full = FindPreset("Qwen3-4B");
  ASSERT_TRUE(full.ok());
  for (int64_t n : {0, -1, 37}) {
    ExpectRefused(KeepLayers(full->config, n).status(),
                  "cannot keep " + std::to_string(n) + " layers of 36");
  }
}

}  // namespace
}  // namespace xfer
