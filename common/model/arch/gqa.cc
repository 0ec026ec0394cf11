// Attention with grouped queries.
#include "common/model/arch/blocks.h"

namespace xfer {
namespace {

int64_t Hidden(const HfConfig& c) { return c.hidden_size; }
int64_t HeadDim(const HfConfig& c) { return c.head_dim; }
int64_t QueryRows(const HfConfig& c) { return c.num_attention_heads * c.head_dim; }
int64_t KvRows(const HfConfig& c) { return c.num_key_value_heads * c.head_dim; }
bool HasBias(const HfConfig& c) { return c.attention_bias; }
bool HasQkNorm(const HfConfig& c) { return c.qk_norm; }

constexpr absl::string_view kQ = "self_attn.q_proj.weight";
constexpr absl::string_view kK = "self_attn.k_proj.weight";
constexpr absl::string_view kV = "self_attn.v_proj.weight";
constexpr absl::string_view kO = "self_attn.o_proj.weight";
constexpr absl::string_view kQBias = "self_attn.q_proj.bias";
constexpr absl::string_view kKBias = "self_attn.k_proj.bias";
constexpr absl::string_view kVBias = "self_attn.v_proj.bias";
constexpr absl::string_view kQNorm = "self_attn.q_norm.weight";
constexpr absl::string_view kKNorm = "self_attn.k_norm.weight";
constexpr absl::string_view kInputNorm = "input_layernorm.weight";

constexpr HfTensor kHf[] = {
    {.name = kInputNorm, .rows = Hidden},
    {.name = kQ, .rows = QueryRows, .cols = Hidden, .linear = true},
    {.name = kK, .rows = KvRows, .cols = Hidden, .linear = true},
    {.name = kV, .rows = KvRows, .cols = Hidden, .linear = true},
    {.name = kO, .rows = Hidden, .cols = QueryRows, .linear = true},
    {.name = kQBias, .rows = QueryRows, .when = HasBias},
    {.name = kKBias, .rows = KvRows, .when = HasBias},
    {.name = kVBias, .rows = KvRows, .when = HasBias},
    {.name = kQNorm, .rows = HeadDim, .when = HasQkNorm},
    {.name = kKNorm, .rows = HeadDim, .when = HasQkNorm},
};

constexpr Shard kT = Shard::kTensor;
constexpr FrameworkTensor kMegatron[] = {
    {.name = "self_attention.linear_qkv.layer_norm_weight", .sources = {{{kInputNorm}}}},
    {.name = "self_attention.linear_qkv.weight",
     .sources = {{{kQ, kT}, {kK, kT}, {kV, kT}}},
     .order = Order::kQkvGroups,
     .fused = "self_attn.qkv_proj"},
    {.name = "self_attention.linear_qkv.bias",
     .sources = {{{kQBias, kT}, {kKBias, kT}, {kVBias, kT}}},
     .order = Order::kQkvGroups,
     .fused = "self_attn.qkv_proj.bias",
     .when = HasBias},
    {.name = "self_attention.q_layernorm.weight", .sources = {{{kQNorm}}}, .when = HasQkNorm},
    {.name = "self_attention.k_layernorm.weight", .sources = {{{kKNorm}}}, .when = HasQkNorm},
    {.name = "self_attention.linear_proj.weight", .sources = {{{kO, kT}}}, .cut = 1},
};

constexpr Shard kAttn = Shard::kAttention;
constexpr Shard kKv = Shard::kKvHeads;
constexpr FrameworkTensor kSglang[] = {
    {.name = kInputNorm, .sources = {{{kInputNorm}}}},
    {.name = "self_attn.qkv_proj.weight",
     .sources = {{{kQ, kAttn}, {kK, kKv}, {kV, kKv}}},
     .fused = "self_attn.qkv_proj"},
    {.name = "self_attn.qkv_proj.bias",
     .sources = {{{kQBias, kAttn}, {kKBias, kKv}, {kVBias, kKv}}},
     .fused = "self_attn.qkv_proj.bias",
     .when = HasBias},
    {.name = kQNorm, .sources = {{{kQNorm}}}, .when = HasQkNorm},
    {.name = kKNorm, .sources = {{{kKNorm}}}, .when = HasQkNorm},
    {.name = kO, .sources = {{{kO, kAttn}}}, .cut = 1},
};

}  // namespace

const Block kGqaAttention = {kHf, kMegatron, kSglang};

}  // namespace xfer
