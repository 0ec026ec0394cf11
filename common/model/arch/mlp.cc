// Feed-forward parts: dense, routed experts, shared experts; and what an MTP layer adds.
#include "common/model/arch/blocks.h"

namespace xfer {
namespace {

int64_t Hidden(const HfConfig& c) { return c.hidden_size; }
int64_t TwiceHidden(const HfConfig& c) { return 2 * c.hidden_size; }
int64_t Inter(const HfConfig& c) { return c.intermediate_size; }
int64_t MoeInter(const HfConfig& c) { return c.moe_intermediate_size; }
int64_t SharedInter(const HfConfig& c) { return c.moe_intermediate_size * c.n_shared_experts; }
int64_t Experts(const HfConfig& c) { return c.num_experts; }
int64_t Vocab(const HfConfig& c) { return c.vocab_size; }
bool HasCorrectionBias(const HfConfig& c) { return c.correction_bias; }
bool HasShared(const HfConfig& c) { return c.n_shared_experts > 0; }
bool MtpStoresEmbed(const HfConfig& c) { return c.mtp_stores_embed_and_head; }

constexpr absl::string_view kPostNorm = "post_attention_layernorm.weight";

// Dense.
constexpr absl::string_view kGate = "mlp.gate_proj.weight";
constexpr absl::string_view kUp = "mlp.up_proj.weight";
constexpr absl::string_view kDown = "mlp.down_proj.weight";

constexpr HfTensor kDenseHf[] = {
    {.name = kPostNorm, .rows = Hidden},
    {.name = kGate, .rows = Inter, .cols = Hidden, .linear = true},
    {.name = kUp, .rows = Inter, .cols = Hidden, .linear = true},
    {.name = kDown, .rows = Hidden, .cols = Inter, .linear = true},
};

constexpr Shard kT = Shard::kTensor;
constexpr FrameworkTensor kDenseMegatron[] = {
    {.name = "mlp.linear_fc1.layer_norm_weight", .sources = {{{kPostNorm}}}},
    {.name = "mlp.linear_fc1.weight", .sources = {{{kGate, kT}, {kUp, kT}}}},
    {.name = "mlp.linear_fc2.weight", .sources = {{{kDown, kT}}}, .cut = 1},
};

constexpr Shard kDense = Shard::kDenseMlp;
constexpr FrameworkTensor kDenseSglang[] = {
    {.name = kPostNorm, .sources = {{{kPostNorm}}}},
    {.name = "mlp.gate_up_proj.weight", .sources = {{{kGate, kDense}, {kUp, kDense}}}},
    {.name = kDown, .sources = {{{kDown, kDense}}}, .cut = 1},
};

// Routed experts.
constexpr absl::string_view kRouter = "mlp.gate.weight";
constexpr absl::string_view kRouterBias = "mlp.gate.e_score_correction_bias";
constexpr absl::string_view kExpertGate = "mlp.experts.{e}.gate_proj.weight";
constexpr absl::string_view kExpertUp = "mlp.experts.{e}.up_proj.weight";
constexpr absl::string_view kExpertDown = "mlp.experts.{e}.down_proj.weight";

constexpr HfTensor kMoeHf[] = {
    {.name = kPostNorm, .rows = Hidden},
    {.name = kRouter, .rows = Experts, .cols = Hidden},
    {.name = kRouterBias, .rows = Experts, .float32 = true, .when = HasCorrectionBias},
    {.name = kExpertGate, .rows = MoeInter, .cols = Hidden, .linear = true},
    {.name = kExpertUp, .rows = MoeInter, .cols = Hidden, .linear = true},
    {.name = kExpertDown, .rows = Hidden, .cols = MoeInter, .linear = true},
};

constexpr Shard kEtp = Shard::kExpertTensor;
constexpr FrameworkTensor kMoeMegatron[] = {
    {.name = "pre_mlp_layernorm.weight", .sources = {{{kPostNorm}}}},
    {.name = "mlp.router.weight", .sources = {{{kRouter}}}},
    {.name = "mlp.router.expert_bias", .sources = {{{kRouterBias}}}, .when = HasCorrectionBias},
    {.name = "mlp.experts.linear_fc1.weight{e}",
     .sources = {{{kExpertGate, kEtp}, {kExpertUp, kEtp}}}},
    {.name = "mlp.experts.linear_fc2.weight{e}", .sources = {{{kExpertDown, kEtp}}}, .cut = 1},
};

constexpr Shard kMoe = Shard::kMoeTensor;
constexpr FrameworkTensor kMoeSglang[] = {
    {.name = kPostNorm, .sources = {{{kPostNorm}}}},
    {.name = kRouter, .sources = {{{kRouter}}}},
    {.name = kRouterBias, .sources = {{{kRouterBias}}}, .when = HasCorrectionBias},
    {.name = "mlp.experts.w13_weight", .sources = {{{kExpertGate, kMoe}, {kExpertUp, kMoe}}}},
    {.name = "mlp.experts.w2_weight", .sources = {{{kExpertDown, kMoe}}}, .cut = 1},
};

// Shared experts, as a module of their own. (sglang can also fold one into the routed experts as an
// extra slot. It does so only with one expert rank, and --disable-shared-experts-fusion turns it
// off. Such an engine is refused when it registers, since its w13_weight has a slot too many.)
constexpr absl::string_view kSharedGate = "mlp.shared_experts.gate_proj.weight";
constexpr absl::string_view kSharedUp = "mlp.shared_experts.up_proj.weight";
constexpr absl::string_view kSharedDown = "mlp.shared_experts.down_proj.weight";

constexpr HfTensor kSharedHf[] = {
    {.name = kSharedGate, .rows = SharedInter, .cols = Hidden, .linear = true, .when = HasShared},
    {.name = kSharedUp, .rows = SharedInter, .cols = Hidden, .linear = true, .when = HasShared},
    {.name = kSharedDown, .rows = Hidden, .cols = SharedInter, .linear = true, .when = HasShared},
};

// The ordinary tensor parallel ranks share them, not the expert ones.
constexpr FrameworkTensor kSharedMegatron[] = {
    {.name = "mlp.shared_experts.linear_fc1.weight",
     .sources = {{{kSharedGate, kT}, {kSharedUp, kT}}},
     .when = HasShared},
    {.name = "mlp.shared_experts.linear_fc2.weight",
     .sources = {{{kSharedDown, kT}}},
     .cut = 1,
     .when = HasShared},
};

constexpr Shard kAll = Shard::kEngine;
constexpr FrameworkTensor kSharedSglang[] = {
    {.name = "mlp.shared_experts.gate_up_proj.weight",
     .sources = {{{kSharedGate, kAll}, {kSharedUp, kAll}}},
     .when = HasShared},
    {.name = kSharedDown, .sources = {{{kSharedDown, kAll}}}, .cut = 1, .when = HasShared},
};

constexpr HfTensor kMtpHf[] = {
    {.name = "eh_proj.weight", .rows = Hidden, .cols = TwiceHidden},
    {.name = "enorm.weight", .rows = Hidden},
    {.name = "hnorm.weight", .rows = Hidden},
    {.name = "shared_head.norm.weight", .rows = Hidden},
    {.name = "embed_tokens.weight", .rows = Vocab, .cols = Hidden, .when = MtpStoresEmbed},
    {.name = "shared_head.head.weight", .rows = Vocab, .cols = Hidden, .when = MtpStoresEmbed},
};

// Megatron's MTP layer shares the model's embedding and head, so it holds no copies of its own.
constexpr FrameworkTensor kMtpMegatron[] = {
    {.name = "eh_proj.weight", .sources = {{{"eh_proj.weight", kT}}}},
    {.name = "enorm.weight", .sources = {{{"enorm.weight"}}}},
    {.name = "hnorm.weight", .sources = {{{"hnorm.weight"}}}},
    {.name = "final_layernorm.weight", .sources = {{{"shared_head.norm.weight"}}}},
};

}  // namespace

const Block kDenseMlp = {kDenseHf, kDenseMegatron, kDenseSglang};
const Block kMoeMlp = {kMoeHf, kMoeMegatron, kMoeSglang};
const Block kSharedExperts = {kSharedHf, kSharedMegatron, kSharedSglang};
const Block kMtpExtras = {kMtpHf, kMtpMegatron, {}};

}  // namespace xfer
