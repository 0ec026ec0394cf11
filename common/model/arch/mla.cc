// Multi-head latent attention, and the sparse-attention indexer that stands beside it.
#include "common/model/arch/blocks.h"

namespace xfer {
namespace {

int64_t Hidden(const HfConfig& c) { return c.hidden_size; }
int64_t QRank(const HfConfig& c) { return c.q_lora_rank; }
int64_t KvRank(const HfConfig& c) { return c.kv_lora_rank; }
int64_t KvARows(const HfConfig& c) { return c.kv_lora_rank + c.qk_rope_head_dim; }
int64_t QBRows(const HfConfig& c) {
  return c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
}
int64_t KvBRows(const HfConfig& c) {
  return c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim);
}
int64_t ValueCols(const HfConfig& c) { return c.num_attention_heads * c.v_head_dim; }
int64_t IndexRows(const HfConfig& c) { return c.index_n_heads * c.index_head_dim; }
int64_t IndexHeads(const HfConfig& c) { return c.index_n_heads; }
int64_t IndexDim(const HfConfig& c) { return c.index_head_dim; }
bool Interleaved(const HfConfig& c) { return c.indexer_rope_interleave; }
bool NotInterleaved(const HfConfig& c) { return !c.indexer_rope_interleave; }

constexpr absl::string_view kInputNorm = "input_layernorm.weight";
constexpr absl::string_view kQA = "self_attn.q_a_proj.weight";
constexpr absl::string_view kQANorm = "self_attn.q_a_layernorm.weight";
constexpr absl::string_view kQB = "self_attn.q_b_proj.weight";
constexpr absl::string_view kKvA = "self_attn.kv_a_proj_with_mqa.weight";
constexpr absl::string_view kKvANorm = "self_attn.kv_a_layernorm.weight";
constexpr absl::string_view kKvB = "self_attn.kv_b_proj.weight";
constexpr absl::string_view kO = "self_attn.o_proj.weight";

constexpr HfTensor kHf[] = {
    {.name = kInputNorm, .rows = Hidden},
    {.name = kQA, .rows = QRank, .cols = Hidden, .linear = true},
    {.name = kQANorm, .rows = QRank},
    {.name = kQB, .rows = QBRows, .cols = QRank, .linear = true},
    {.name = kKvA, .rows = KvARows, .cols = Hidden, .linear = true},
    {.name = kKvANorm, .rows = KvRank},
    {.name = kKvB, .rows = KvBRows, .cols = KvRank, .linear = true},
    {.name = kO, .rows = Hidden, .cols = ValueCols, .linear = true},
};

// The rollout fuses both down projections into one parameter, so they are updated together.
constexpr absl::string_view kFusedA = "self_attn.fused_qkv_a_proj_with_mqa";

constexpr Shard kT = Shard::kTensor;
constexpr FrameworkTensor kMegatron[] = {
    {.name = "input_layernorm.weight", .sources = {{{kInputNorm}}}},
    {.name = "self_attention.linear_q_down_proj.weight", .sources = {{{kQA}}}, .fused = kFusedA},
    {.name = "self_attention.linear_q_up_proj.layer_norm_weight", .sources = {{{kQANorm}}}},
    {.name = "self_attention.linear_q_up_proj.weight", .sources = {{{kQB, kT}}}},
    {.name = "self_attention.linear_kv_down_proj.weight", .sources = {{{kKvA}}}, .fused = kFusedA},
    {.name = "self_attention.linear_kv_up_proj.layer_norm_weight", .sources = {{{kKvANorm}}}},
    {.name = "self_attention.linear_kv_up_proj.weight", .sources = {{{kKvB, kT}}}},
    {.name = "self_attention.linear_proj.weight", .sources = {{{kO, kT}}}, .cut = 1},
};

constexpr Shard kAttn = Shard::kAttention;
constexpr FrameworkTensor kSglang[] = {
    {.name = kInputNorm, .sources = {{{kInputNorm}}}},
    {.name = "self_attn.fused_qkv_a_proj_with_mqa.weight",
     .sources = {{{kQA}, {kKvA}}},
     .fused = kFusedA},
    {.name = kQANorm, .sources = {{{kQANorm}}}},
    {.name = kKvANorm, .sources = {{{kKvANorm}}}},
    {.name = kQB, .sources = {{{kQB, kAttn}}}},
    {.name = kKvB, .sources = {{{kKvB, kAttn}}}},
    {.name = kO, .sources = {{{kO, kAttn}}}, .cut = 1},
};

constexpr absl::string_view kWqB = "self_attn.indexer.wq_b.weight";
constexpr absl::string_view kWk = "self_attn.indexer.wk.weight";
constexpr absl::string_view kWeights = "self_attn.indexer.weights_proj.weight";
constexpr absl::string_view kNormWeight = "self_attn.indexer.k_norm.weight";
constexpr absl::string_view kNormBias = "self_attn.indexer.k_norm.bias";

// The indexer stays in the model's own dtype in fp8 checkpoints, so nothing here is `linear`.
constexpr HfTensor kIndexerHf[] = {
    {.name = kWqB, .rows = IndexRows, .cols = QRank},
    {.name = kWk, .rows = IndexDim, .cols = Hidden},
    {.name = kWeights, .rows = IndexHeads, .cols = Hidden},
    {.name = kNormWeight, .rows = IndexDim},
    {.name = kNormBias, .rows = IndexDim},
};

constexpr absl::string_view kFusedWk = "self_attn.indexer.wk_weights_proj";

constexpr FrameworkTensor kIndexerMegatron[] = {
    {.name = "self_attention.wq_b.weight", .sources = {{{kWqB}}}, .order = Order::kHalfSwap},
    {.name = "self_attention.wk.weight",
     .sources = {{{kWk}}},
     .order = Order::kHalfSwap,
     .fused = kFusedWk},
    {.name = "self_attention.weights_proj.weight", .sources = {{{kWeights}}}, .fused = kFusedWk},
    {.name = "self_attention.k_norm.weight",
     .sources = {{{kNormWeight}}},
     .order = Order::kHalfSwap},
    {.name = "self_attention.k_norm.bias", .sources = {{{kNormBias}}}, .order = Order::kHalfSwap},
};

// sglang fuses wk and weights_proj only where the indexer's rope is interleaved.
constexpr FrameworkTensor kIndexerSglang[] = {
    {.name = kWqB, .sources = {{{kWqB}}}},
    {.name = "self_attn.indexer.wk_weights_proj.weight",
     .sources = {{{kWk}, {kWeights}}},
     .fused = kFusedWk,
     .when = Interleaved},
    {.name = kWk, .sources = {{{kWk}}}, .when = NotInterleaved},
    {.name = kWeights, .sources = {{{kWeights}}}, .when = NotInterleaved},
    {.name = kNormWeight, .sources = {{{kNormWeight}}}, .float32 = true},
    {.name = kNormBias, .sources = {{{kNormBias}}}, .float32 = true},
};

}  // namespace

const Block kMlaAttention = {kHf, kMegatron, kSglang};
const Block kIndexer = {kIndexerHf, kIndexerMegatron, kIndexerSglang};

}  // namespace xfer
