// Megatron's layout against a plain copy of the converter that gathers a training world's shards
// into a checkpoint.
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/layout/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/layout/labelled.h"
#include "tests/unit/common/layout/random_spec.h"

namespace xfer {
namespace {

using ::testing::Pair;

// Gathers the shards of all ranks and renames them, layer by layer.
class Converter {
 public:
  Converter(const ModelSpec& spec, const std::vector<Arrays>& ranks)
      : c_(spec.config), t_(spec.train), ranks_(ranks) {}

  Arrays Convert() {
    stage_ = 0;
    out_["model.embed_tokens.weight"] =
        Rows(CatRows(OverTp("embedding.word_embeddings.weight")), 0, c_.vocab_size);
    int64_t layer = 0;
    for (stage_ = 0; stage_ < t_.pp; ++stage_) {
      const int64_t last =
          t_.last_stage_layers.value_or(static_cast<int32_t>(c_.num_hidden_layers / t_.pp));
      const int64_t n = stage_ == t_.pp - 1 ? last : (c_.num_hidden_layers - last) / (t_.pp - 1);
      for (int64_t l = 0; l < n; ++l) Layer(absl::StrCat("decoder.layers.", l, "."), layer++);
    }
    stage_ = t_.pp - 1;
    out_["model.norm.weight"] = Same("decoder.final_layernorm.weight");
    if (!c_.tie_word_embeddings || t_.pp > 1) {
      const Array head = Rows(CatRows(OverTp("output_layer.weight")), 0, c_.vocab_size);
      if (c_.tie_word_embeddings) {
        EXPECT_TRUE(head == out_["model.embed_tokens.weight"]);
      } else {
        out_["lm_head.weight"] = head;
      }
    }
    for (int k = 0; k < t_.mtp_layers; ++k) Mtp(k);
    if (t_.mtp_layers > 0) {
      EXPECT_TRUE(Rows(CatRows(OverTp("embedding.word_embeddings.weight")), 0, c_.vocab_size) ==
                  out_["model.embed_tokens.weight"]);
    }
    return std::move(out_);
  }

  // Names that were read, by stage.
  const std::set<std::pair<int, std::string>>& used() const { return used_; }

 private:
  // The ranks of the stage, by their number inside it.
  const Arrays& Rank(int64_t q) { return ranks_.at(stage_ * (t_.world / t_.pp) + q); }
  const Array& Get(int64_t q, const std::string& name) {
    used_.insert({stage_, name});
    const auto it = Rank(q).find(name);
    if (it == Rank(q).end()) {
      ADD_FAILURE() << "stage " << stage_ << " rank " << q << " lacks " << name;
      static const Array none{{1, 1}, {0}};
      return none;
    }
    return it->second;
  }

  // One shard a tensor parallel rank; the copies of each must be equal.
  std::vector<Array> OverTp(const std::string& name) {
    std::vector<Array> out(t_.tp);
    for (int64_t q = 0; q < t_.world / t_.pp; ++q) {
      const Array& a = Get(q, name);
      Array& shard = out[q % t_.tp];
      if (shard.shape.empty()) shard = a;
      EXPECT_TRUE(shard == a) << name << " differs between copies";
    }
    return out;
  }
  Array Same(const std::string& name) {
    const std::vector<Array> all = OverTp(name);
    for (const Array& a : all) EXPECT_TRUE(a == all[0]) << name;
    return all[0];
  }

  static Array Half(const Array& a, int which) { return RowPart(a, which, 2); }
  // fc1 and fc2 of one MLP from its shards.
  void Mlp(const std::string& hf, const std::vector<Array>& fc1, const std::vector<Array>& fc2) {
    std::vector<Array> gate, up;
    for (const Array& a : fc1) {
      gate.push_back(Half(a, 0));
      up.push_back(Half(a, 1));
    }
    out_[hf + "gate_proj.weight"] = CatRows(gate);
    out_[hf + "up_proj.weight"] = CatRows(up);
    out_[hf + "down_proj.weight"] = CatCols(fc2);
  }

  void Qkv(const std::string& hf, const std::string& what, const Array& qkv) {
    const int64_t d = c_.head_dim;
    const int64_t per = c_.num_attention_heads / c_.num_key_value_heads;
    std::vector<Array> q, k, v;
    for (int64_t g = 0; g < c_.num_key_value_heads; ++g) {
      const Array group = RowPart(qkv, g, c_.num_key_value_heads);
      q.push_back(Rows(group, 0, per * d));
      k.push_back(Rows(group, per * d, d));
      v.push_back(Rows(group, (per + 1) * d, d));
    }
    out_[hf + "q_proj." + what] = CatRows(q);
    out_[hf + "k_proj." + what] = CatRows(k);
    out_[hf + "v_proj." + what] = CatRows(v);
  }

  Array Swapped(const Array& a) {
    if (!c_.indexer_rope_interleave) return a;
    std::vector<Array> out;
    const int64_t heads = a.shape[0] / c_.index_head_dim;
    for (int64_t h = 0; h < heads; ++h) {
      const Array head = RowPart(a, h, heads);
      out.push_back(Half(head, 1));
      out.push_back(Half(head, 0));
    }
    return CatRows(out);
  }

  void Attention(const std::string& m, const std::string& hf) {
    const std::string a = hf + "self_attn.";
    const std::string s = m + "self_attention.";
    out_[a + "o_proj.weight"] = CatCols(OverTp(s + "linear_proj.weight"));
    if (c_.kv_lora_rank == 0) {
      out_[hf + "input_layernorm.weight"] = Same(s + "linear_qkv.layer_norm_weight");
      Qkv(a, "weight", CatRows(OverTp(s + "linear_qkv.weight")));
      if (c_.attention_bias) Qkv(a, "bias", CatRows(OverTp(s + "linear_qkv.bias")));
      if (c_.qk_norm) {
        out_[a + "q_norm.weight"] = Same(s + "q_layernorm.weight");
        out_[a + "k_norm.weight"] = Same(s + "k_layernorm.weight");
      }
      return;
    }
    out_[hf + "input_layernorm.weight"] = Same(m + "input_layernorm.weight");
    out_[a + "q_a_proj.weight"] = Same(s + "linear_q_down_proj.weight");
    out_[a + "q_a_layernorm.weight"] = Same(s + "linear_q_up_proj.layer_norm_weight");
    out_[a + "q_b_proj.weight"] = CatRows(OverTp(s + "linear_q_up_proj.weight"));
    out_[a + "kv_a_proj_with_mqa.weight"] = Same(s + "linear_kv_down_proj.weight");
    out_[a + "kv_a_layernorm.weight"] = Same(s + "linear_kv_up_proj.layer_norm_weight");
    out_[a + "kv_b_proj.weight"] = CatRows(OverTp(s + "linear_kv_up_proj.weight"));
    if (c_.index_n_heads == 0) return;
    const std::string x = a + "indexer.";
    out_[x + "wq_b.weight"] = Swapped(Same(s + "wq_b.weight"));
    out_[x + "wk.weight"] = Swapped(Same(s + "wk.weight"));
    out_[x + "k_norm.weight"] = Swapped(Same(s + "k_norm.weight"));
    out_[x + "k_norm.bias"] = Swapped(Same(s + "k_norm.bias"));
    out_[x + "weights_proj.weight"] = Same(s + "weights_proj.weight");
  }

  void Experts(const std::string& m, const std::string& hf) {
    const int64_t per = c_.num_experts / t_.ep;
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      std::vector<Array> fc1(t_.etp), fc2(t_.etp);
      for (int64_t q = 0; q < t_.world / t_.pp; ++q) {
        if (q / t_.etp % t_.ep != e / per) continue;
        const int64_t etp = q % t_.etp;
        const Array& a = Get(q, absl::StrCat(m, "mlp.experts.linear_fc1.weight", e % per));
        const Array& b = Get(q, absl::StrCat(m, "mlp.experts.linear_fc2.weight", e % per));
        if (fc1[etp].shape.empty()) {
          fc1[etp] = a;
          fc2[etp] = b;
        }
        EXPECT_TRUE(fc1[etp] == a && fc2[etp] == b) << "expert " << e << " differs";
      }
      Mlp(absl::StrCat(hf, "mlp.experts.", e, "."), fc1, fc2);
    }
  }

  void Layer(const std::string& m, int64_t layer) {
    const std::string hf = absl::StrCat("model.layers.", layer, ".");
    Attention(m, hf);
    if (c_.num_experts == 0 || layer < c_.first_k_dense_replace) {
      out_[hf + "post_attention_layernorm.weight"] = Same(m + "mlp.linear_fc1.layer_norm_weight");
      Mlp(hf + "mlp.", OverTp(m + "mlp.linear_fc1.weight"), OverTp(m + "mlp.linear_fc2.weight"));
      return;
    }
    out_[hf + "post_attention_layernorm.weight"] = Same(m + "pre_mlp_layernorm.weight");
    out_[hf + "mlp.gate.weight"] = Same(m + "mlp.router.weight");
    if (c_.architecture != "Qwen3MoeForCausalLM") {
      out_[hf + "mlp.gate.e_score_correction_bias"] = Same(m + "mlp.router.expert_bias");
    }
    Experts(m, hf);
    if (c_.n_shared_experts > 0) {
      Mlp(hf + "mlp.shared_experts.", OverTp(m + "mlp.shared_experts.linear_fc1.weight"),
          OverTp(m + "mlp.shared_experts.linear_fc2.weight"));
    }
  }

  void Mtp(int k) {
    const std::string m = absl::StrCat("mtp.layers.", k, ".");
    const int64_t layer = c_.num_hidden_layers + k;
    const std::string hf = absl::StrCat("model.layers.", layer, ".");
    out_[hf + "eh_proj.weight"] = CatRows(OverTp(m + "eh_proj.weight"));
    out_[hf + "enorm.weight"] = Same(m + "enorm.weight");
    out_[hf + "hnorm.weight"] = Same(m + "hnorm.weight");
    out_[hf + "shared_head.norm.weight"] = Same(m + "final_layernorm.weight");
    Layer(m + "transformer_layer.", layer);
  }

  const HfConfig& c_;
  const TrainParallelism& t_;
  const std::vector<Arrays>& ranks_;
  int stage_ = 0;
  Arrays out_;
  std::set<std::pair<int, std::string>> used_;
};

// The names the converter leaves out: MTP layers that are not trained, and the copies of the
// embedding and the head that the checkpoint's MTP layers have but Megatron's do not.
bool IsOut(const ModelSpec& spec, const std::string& name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "model.layers.")) return false;
  const int64_t layer = std::stoll(std::string(rest));
  if (layer < spec.config.num_hidden_layers) return false;
  return layer >= spec.config.num_hidden_layers + spec.train.mtp_layers ||
         absl::EndsWith(name, ".embed_tokens.weight") ||
         absl::EndsWith(name, ".shared_head.head.weight");
}

class MegatronTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MegatronTest, TheWorldsShardsConvertToTheCheckpoint) {
  std::mt19937 rng(5);
  for (int round = 0; round < 40; ++round) {
    const ModelSpec spec = RandomSpec(GetParam(), rng);
    ASSERT_FALSE(HasFailure());
    const absl::StatusOr<TensorTable> table = BuildTensorTable(spec.config);
    ASSERT_TRUE(table.ok()) << table.status();
    const Arrays hf = Labelled(*table);
    std::vector<Arrays> ranks;
    for (int rank = 0; rank < spec.train.world; ++rank) {
      const absl::StatusOr<RankLayout> layout = MegatronLayout(spec, *table, rank);
      ASSERT_TRUE(layout.ok()) << layout.status();
      ASSERT_TRUE(CheckLayout(*layout, *table).ok()) << CheckLayout(*layout, *table);
      ranks.push_back(Materialise(*layout, *table, hf));
    }
    Converter converter(spec, ranks);
    const Arrays got = converter.Convert();
    for (const auto& [name, array] : hf) {
      if (IsOut(spec, name)) continue;
      ASSERT_EQ(got.count(name), 1) << name << "\n" << ToJson(spec);
      ASSERT_EQ(got.at(name).shape, array.shape) << name << "\n" << ToJson(spec);
      ASSERT_TRUE(got.at(name) == array) << name << "\n" << ToJson(spec);
    }
    for (const auto& [name, array] : got) ASSERT_EQ(hf.count(name), 1) << name;
    // And no rank holds a tensor that the converter does not know.
    const int per_stage = spec.train.world / spec.train.pp;
    for (int rank = 0; rank < spec.train.world; ++rank) {
      for (const auto& [name, array] : ranks[rank]) {
        ASSERT_EQ(converter.used().count({rank / per_stage, name}), 1) << name;
      }
    }
    ASSERT_FALSE(HasFailure()) << ToJson(spec);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MegatronTest, ::testing::ValuesIn(kArchitectureNames),
                         [](const auto& info) { return std::string(info.param); });

TEST(MegatronCoordinatesTest, TheGridsOverlay) {
  TrainParallelism train;
  train.world = 48;
  train.pp = 2;
  train.tp = 2;
  train.cp = 3;
  train.etp = 2;
  train.ep = 4;
  // Stage 1, q = 21 of 24: tp = 1, cp = 10 mod 3, dp = 21 / 6; etp = 1, ep = 10 mod 4, edp = 21
  // / 8.
  const MegatronCoordinates at = MegatronCoordinatesOf(train, 24 + 21);
  EXPECT_EQ(at.pp, 1);
  EXPECT_EQ(at.tp, 1);
  EXPECT_EQ(at.cp, 1);
  EXPECT_EQ(at.dp, 3);
  EXPECT_EQ(at.etp, 1);
  EXPECT_EQ(at.ep, 2);
  EXPECT_EQ(at.edp, 2);
}

TEST(StageLayersTest, SplitsOfTheProfiles) {
  const auto splits = [](const char* name) {
    const absl::StatusOr<ModelSpec> spec = FindPreset(name);
    EXPECT_TRUE(spec.ok()) << spec.status();
    std::vector<std::pair<int64_t, int64_t>> out;
    for (int pp = 0; pp < spec->train.pp; ++pp) {
      out.push_back(StageLayers(spec->config, spec->train, pp));
    }
    return out;
  };
  EXPECT_THAT(splits("GLM-5_20layer"),
              ::testing::ElementsAre(Pair(0, 7), Pair(7, 14), Pair(14, 20)));
  EXPECT_THAT(splits("GLM-4.5-Air"),
              ::testing::ElementsAre(Pair(0, 12), Pair(12, 24), Pair(24, 36), Pair(36, 46)));
  EXPECT_THAT(splits("Qwen3-4B"), ::testing::ElementsAre(Pair(0, 36)));
  EXPECT_THAT(splits("Kimi-K2-Instruct").back(), Pair(56, 61));
  EXPECT_THAT(splits("Qwen3-235B-A22B-Instruct-2507").back(), Pair(72, 94));
}

}  // namespace
}  // namespace xfer
