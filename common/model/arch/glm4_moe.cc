#include "common/model/arch/blocks.h"

namespace xfer {
namespace {
constexpr const Block* kDenseLayer[] = {&kGqaAttention, &kDenseMlp};
constexpr const Block* kMoeLayer[] = {&kGqaAttention, &kMoeMlp, &kSharedExperts};
}  // namespace

const Architecture kGlm4Moe = {
    .name = "Glm4MoeForCausalLM",
    .dense_layer = kDenseLayer,
    .moe_layer = kMoeLayer,
    .qk_norm = Architecture::QkNorm::kUseQkNormField,
    .qkv_bias = true,
    .correction_bias = true,
    .first_k_dense = true,
    .mtp_embed_and_head = true,
    .dense_tp_setting = true,
};

}  // namespace xfer
