#include "common/model/arch/blocks.h"

namespace xfer {
namespace {
constexpr const Block* kDenseLayer[] = {&kMlaAttention, &kDenseMlp};
constexpr const Block* kMoeLayer[] = {&kMlaAttention, &kMoeMlp, &kSharedExperts};
}  // namespace

const Architecture kGlm4MoeLite = {
    .name = "Glm4MoeLiteForCausalLM",
    .dense_layer = kDenseLayer,
    .moe_layer = kMoeLayer,
    .mla = true,
    .correction_bias = true,
    .first_k_dense = true,
    .mtp_embed_and_head = true,
    .dense_tp_setting = true,
};

}  // namespace xfer
