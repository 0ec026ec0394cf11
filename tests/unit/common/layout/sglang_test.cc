// sglang's layout against a plain copy of what its loader does with a checkpoint.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/layout/labelled.h"
#include "tests/unit/common/layout/random_spec.h"

namespace xfer {
namespace {

// Loads Hugging Face tensors into the parameters of one engine rank.
class Loader {
 public:
  Loader(const ModelSpec& spec, const Arrays& hf, int rank)
      : c_(spec.config), r_(spec.rollout), hf_(hf), rank_(rank) {
    attention_tp_ = r_.dp > 1 ? r_.gpus_per_engine / r_.dp : r_.gpus_per_engine;
    attention_rank_ = rank % attention_tp_;
  }

  Arrays Load() {
    const bool embed_dp = r_.dp > 1 && r_.dp_attention;
    const bool head_dp = r_.dp > 1 && r_.dp_lm_head;
    Vocabulary("model.embed_tokens.weight", embed_dp);
    if (!c_.tie_word_embeddings) Vocabulary("lm_head.weight", head_dp);
    Copy("model.norm.weight");
    for (int64_t l = 0; l < c_.num_hidden_layers; ++l) {
      p_ = absl::StrCat("model.layers.", l, ".");
      Copy(p_ + "input_layernorm.weight");
      Copy(p_ + "post_attention_layernorm.weight");
      if (c_.kv_lora_rank > 0) {
        Mla();
      } else {
        Gqa();
      }
      if (c_.num_experts > 0 && l >= c_.first_k_dense_replace) {
        Moe();
      } else {
        Dense();
      }
    }
    return std::move(out_);
  }

 private:
  const Array& Hf(const std::string& name) { return hf_.at(name); }
  void Copy(const std::string& name) { out_[name] = Hf(name); }

  void Vocabulary(const std::string& name, bool attention_group) {
    const int64_t t = attention_group ? attention_tp_ : r_.gpus_per_engine;
    const int64_t r = attention_group ? attention_rank_ : rank_;
    int64_t padded = c_.vocab_size;
    while (padded % 64 != 0) ++padded;
    out_[name] = RowPart(PadRows(Hf(name), padded), r, t);
  }

  void Gqa() {
    const std::string a = p_ + "self_attn.";
    for (const std::string what : {"weight", "bias"}) {
      if (what == "bias" && !c_.attention_bias) continue;
      const int64_t d = c_.head_dim;
      const int64_t rep = std::max<int64_t>(1, attention_tp_ / c_.num_key_value_heads);
      const int64_t kl = std::max<int64_t>(1, c_.num_key_value_heads / attention_tp_);
      const int64_t first = attention_rank_ / rep * kl;
      out_[a + "qkv_proj." + what] =
          CatRows({RowPart(Hf(a + "q_proj." + what), attention_rank_, attention_tp_),
                   Rows(Hf(a + "k_proj." + what), first * d, kl * d),
                   Rows(Hf(a + "v_proj." + what), first * d, kl * d)});
    }
    if (c_.qk_norm) {
      Copy(a + "q_norm.weight");
      Copy(a + "k_norm.weight");
    }
    out_[a + "o_proj.weight"] = ColPart(Hf(a + "o_proj.weight"), attention_rank_, attention_tp_);
  }

  void Mla() {
    const std::string a = p_ + "self_attn.";
    out_[a + "fused_qkv_a_proj_with_mqa.weight"] =
        CatRows({Hf(a + "q_a_proj.weight"), Hf(a + "kv_a_proj_with_mqa.weight")});
    Copy(a + "q_a_layernorm.weight");
    Copy(a + "kv_a_layernorm.weight");
    for (const std::string name : {"q_b_proj.weight", "kv_b_proj.weight"}) {
      out_[a + name] = RowPart(Hf(a + name), attention_rank_, attention_tp_);
    }
    out_[a + "o_proj.weight"] = ColPart(Hf(a + "o_proj.weight"), attention_rank_, attention_tp_);
    if (c_.index_n_heads == 0) return;
    const std::string x = a + "indexer.";
    Copy(x + "wq_b.weight");
    Copy(x + "k_norm.weight");
    Copy(x + "k_norm.bias");
    if (c_.indexer_rope_interleave) {
      out_[x + "wk_weights_proj.weight"] =
          CatRows({Hf(x + "wk.weight"), Hf(x + "weights_proj.weight")});
    } else {
      Copy(x + "wk.weight");
      Copy(x + "weights_proj.weight");
    }
  }

  void Mlp(const std::string& prefix, int64_t rank, int64_t count) {
    out_[prefix + "gate_up_proj.weight"] =
        CatRows({RowPart(Hf(prefix + "gate_proj.weight"), rank, count),
                 RowPart(Hf(prefix + "up_proj.weight"), rank, count)});
    out_[prefix + "down_proj.weight"] = ColPart(Hf(prefix + "down_proj.weight"), rank, count);
  }

  void Dense() {
    const bool has_setting = c_.num_experts > 0;  // the dense layers of MoE models only
    const bool whole = has_setting && r_.moe_dense_tp == 1;
    Mlp(p_ + "mlp.", whole ? 0 : rank_, whole ? 1 : r_.gpus_per_engine);
  }

  void Moe() {
    const std::string m = p_ + "mlp.";
    Copy(m + "gate.weight");
    if (c_.architecture != "Qwen3MoeForCausalLM") Copy(m + "gate.e_score_correction_bias");
    const int64_t moe_tp = r_.gpus_per_engine / r_.ep;
    const int64_t moe_rank = rank_ % moe_tp;
    const int64_t ep_rank = rank_ / moe_tp;
    std::vector<Array> w13;
    std::vector<Array> w2;
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      if (e / (c_.num_experts / r_.ep) != ep_rank) continue;
      const std::string x = absl::StrCat(m, "experts.", e, ".");
      w13.push_back(CatRows({RowPart(Hf(x + "gate_proj.weight"), moe_rank, moe_tp),
                             RowPart(Hf(x + "up_proj.weight"), moe_rank, moe_tp)}));
      w2.push_back(ColPart(Hf(x + "down_proj.weight"), moe_rank, moe_tp));
    }
    out_[m + "experts.w13_weight"] = Stack(w13);
    out_[m + "experts.w2_weight"] = Stack(w2);
    if (c_.n_shared_experts > 0) Mlp(m + "shared_experts.", rank_, r_.gpus_per_engine);
  }

  const HfConfig& c_;
  const RolloutParallelism& r_;
  const Arrays& hf_;
  int64_t rank_;
  int64_t attention_tp_;
  int64_t attention_rank_;
  std::string p_;
  Arrays out_;
};

class SglangTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SglangTest, EveryRankHoldsWhatTheLoaderPutsThere) {
  std::mt19937 rng(11);
  for (int round = 0; round < 60; ++round) {
    const ModelSpec spec = RandomSpec(GetParam(), rng);
    ASSERT_FALSE(HasFailure());
    const absl::StatusOr<TensorTable> table = BuildTensorTable(spec.config);
    ASSERT_TRUE(table.ok()) << table.status();
    const Arrays hf = Labelled(*table);
    for (int rank = 0; rank < spec.rollout.gpus_per_engine; ++rank) {
      const absl::StatusOr<RankLayout> layout = SglangLayout(spec, *table, rank);
      ASSERT_TRUE(layout.ok()) << layout.status();
      ASSERT_TRUE(CheckLayout(*layout, *table).ok()) << CheckLayout(*layout, *table);
      const Arrays got = Materialise(*layout, *table, hf);
      const Arrays want = Loader(spec, hf, rank).Load();
      for (const auto& [name, array] : want) {
        ASSERT_EQ(got.count(name), 1) << name << "\n" << ToJson(spec);
        ASSERT_EQ(got.at(name).shape, array.shape) << name << "\n" << ToJson(spec);
        ASSERT_TRUE(got.at(name) == array) << name << " rank " << rank << "\n" << ToJson(spec);
      }
      ASSERT_EQ(got.size(), want.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SglangTest, ::testing::ValuesIn(kArchitectureNames),
                         [](const auto& info) { return std::string(info.param); });

TEST(SglangTypesTest, IndexerNormsAndCorrectionBiasAreFloat32) {
  const absl::StatusOr<ModelSpec> spec = FindPreset("GLM-5_4layer");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<TensorTable> table = BuildTensorTable(spec->config);
  ASSERT_TRUE(table.ok()) << table.status();
  const absl::StatusOr<RankLayout> layout = SglangLayout(*spec, *table, 3);
  ASSERT_TRUE(layout.ok()) << layout.status();
  int norms = 0;
  for (const LocalTensor& tensor : layout->tensors) {
    const bool norm = tensor.name.find("indexer.k_norm") != std::string::npos;
    const bool bias = tensor.name.find("e_score_correction_bias") != std::string::npos;
    norms += norm ? 1 : 0;
    EXPECT_EQ(tensor.dtype, norm || bias ? DType::kF32 : DType::kBF16) << tensor.name;
  }
  EXPECT_EQ(norms, 8);
}

TEST(SglangFusedTest, PartsOfOneParameterShareAGroup) {
  const absl::StatusOr<ModelSpec> spec = FindPreset("GLM-5_4layer");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<TensorTable> table = BuildTensorTable(spec->config);
  ASSERT_TRUE(table.ok()) << table.status();
  const absl::StatusOr<RankLayout> rollout = SglangLayout(*spec, *table, 0);
  const absl::StatusOr<RankLayout> train = MegatronLayout(*spec, *table, 0);
  ASSERT_TRUE(rollout.ok() && train.ok());
  const auto groups = [](const RankLayout& layout, const std::string& group) {
    std::vector<std::string> out;
    for (const LocalTensor& t : layout.tensors) {
      if (t.fused_group == group) out.push_back(t.name);
    }
    return out;
  };
  const std::string qkv_a = "model.layers.1.self_attn.fused_qkv_a_proj_with_mqa";
  EXPECT_THAT(groups(*rollout, qkv_a), ::testing::ElementsAre(qkv_a + ".weight"));
  EXPECT_THAT(groups(*train, qkv_a),
              ::testing::ElementsAre("decoder.layers.1.self_attention.linear_q_down_proj.weight",
                                     "decoder.layers.1.self_attention.linear_kv_down_proj.weight"));
}

}  // namespace
}  // namespace xfer
