#include "tests/unit/common/layout/random_spec.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace xfer {
namespace {

class Draw {
 public:
  explicit Draw(std::mt19937& rng) : rng_(rng) {}
  int64_t operator()(int64_t min, int64_t max) {
    return std::uniform_int_distribution<int64_t>(min, max)(rng_);
  }
  int64_t Of(const std::vector<int64_t>& values) {
    return values[(*this)(0, static_cast<int64_t>(values.size()) - 1)];
  }
  bool Coin() { return (*this)(0, 1) == 1; }

 private:
  std::mt19937& rng_;
};

void DrawParallelism(Draw& draw, bool moe, ModelSpec& spec) {
  TrainParallelism& t = spec.train;
  t.tp = static_cast<int32_t>(draw.Of({1, 2, 3, 4}));
  t.pp = static_cast<int32_t>(draw.Of({1, 1, 2, 3}));
  t.cp = static_cast<int32_t>(draw.Of({1, 2}));
  t.ep = moe ? static_cast<int32_t>(draw.Of({1, 2, 4})) : 1;
  t.etp = moe ? static_cast<int32_t>(draw.Of({1, 1, 2})) : 1;
  t.world = t.pp * std::lcm(t.tp * t.cp, t.ep * t.etp) * static_cast<int32_t>(draw.Of({1, 1, 2}));
  t.vocab_divisor = static_cast<int32_t>(draw.Of({1, 16, 24, 128}));
  RolloutParallelism& r = spec.rollout;
  r.gpus_per_engine = static_cast<int32_t>(draw.Of({1, 2, 4, 6, 8}));
  r.world = r.gpus_per_engine * static_cast<int32_t>(draw.Of({1, 2}));
  r.ep = moe ? static_cast<int32_t>(draw.Of({1, 2, 4, 8})) : 1;
  r.dp_attention = draw.Coin();
  r.dp = r.dp_attention ? static_cast<int32_t>(draw.Of({1, 2, 4, 8})) : 1;
  r.dp_lm_head = r.dp_attention && draw.Coin();
  r.moe_dense_tp = static_cast<int32_t>(draw.Of({0, 1, r.gpus_per_engine}));
  spec.nodes = t.world + r.world;
}

void DrawAttention(Draw& draw, const std::string& architecture, const ModelSpec& spec,
                   nlohmann::json& config) {
  const int64_t tp = spec.train.tp;
  if (architecture == "Qwen3ForCausalLM" || architecture == "Qwen3MoeForCausalLM" ||
      architecture == "Glm4MoeForCausalLM") {
    const int64_t kv = tp * draw(1, 3);
    config["num_key_value_heads"] = kv;
    config["num_attention_heads"] = kv * draw(1, 4);
    config["head_dim"] = draw.Of({2, 4, 6});
    const bool glm = architecture == "Glm4MoeForCausalLM";
    config["attention_bias"] = glm && draw.Coin();
    config["use_qk_norm"] = draw.Coin();
    return;
  }
  config["num_attention_heads"] = tp * draw(1, 4);
  config["q_lora_rank"] = draw(1, 9);
  config["kv_lora_rank"] = draw(1, 9);
  config["qk_nope_head_dim"] = draw(1, 5);
  config["qk_rope_head_dim"] = draw(1, 5);
  config["v_head_dim"] = draw(1, 5);
  if (architecture == "GlmMoeDsaForCausalLM" || architecture == "DeepseekV32ForCausalLM") {
    config["index_n_heads"] = draw(1, 4);
    config["index_head_dim"] = 2 * draw(1, 4);
    config["indexer_rope_interleave"] = draw.Coin();
  }
}

void DrawMlp(Draw& draw, bool moe, bool shared, ModelSpec& spec, nlohmann::json& config) {
  const int64_t all = std::lcm(spec.train.tp, spec.rollout.gpus_per_engine);
  config["intermediate_size"] = all * draw(1, 2);
  if (!moe) return;
  config["num_experts"] = std::lcm(spec.train.ep, spec.rollout.ep) * draw(1, 2);
  config["moe_intermediate_size"] = std::lcm(all, int64_t{spec.train.etp}) * draw(1, 2);
  if (!shared) return;
  config["n_shared_experts"] = draw(0, 2);
  config["first_k_dense_replace"] = draw(0, 3);
  config["num_nextn_predict_layers"] = draw(0, 2);
  spec.train.mtp_layers = static_cast<int32_t>(draw(0, config["num_nextn_predict_layers"]));
}

}  // namespace

ModelSpec RandomSpec(const std::string& architecture, std::mt19937& rng) {
  Draw draw(rng);
  const bool moe = architecture != "Qwen3ForCausalLM";
  const bool shared = moe && architecture != "Qwen3MoeForCausalLM";
  // Most draws of the two sides do not fit each other; Validate() tells.
  for (int attempt = 0; attempt < 100000; ++attempt) {
    ModelSpec spec;
    spec.name = "random";
    DrawParallelism(draw, moe, spec);
    nlohmann::json config = {{"architectures", {architecture}},
                             {"hidden_size", spec.train.tp * draw(1, 4)},
                             {"vocab_size", draw(1, 200)},
                             {"tie_word_embeddings", draw.Coin()}};
    DrawAttention(draw, architecture, spec, config);
    DrawMlp(draw, moe, shared, spec, config);
    const int64_t each = draw(1, 2);
    const int64_t last = draw(1, 3);
    config["num_hidden_layers"] = each * (spec.train.pp - 1) + last;
    if (last != each || draw.Coin()) spec.train.last_stage_layers = static_cast<int32_t>(last);
    const absl::StatusOr<HfConfig> parsed = ParseHfConfig(config.dump());
    if (!parsed.ok()) {
      ADD_FAILURE() << parsed.status() << "\n" << config.dump();
      break;
    }
    spec.config = *parsed;
    if (Validate(spec).ok()) return spec;
  }
  ADD_FAILURE() << "no valid draw for " << architecture;
  return {};
}

}  // namespace xfer
