#include "common/model/arch/blocks.h"

namespace xfer {
namespace {
constexpr const Block* kDenseLayer[] = {&kMlaAttention, &kDenseMlp};
constexpr const Block* kMoeLayer[] = {&kMlaAttention, &kMoeMlp, &kSharedExperts};
}  // namespace

const Architecture kDeepseekV3 = {
    .name = "DeepseekV3ForCausalLM",
    .dense_layer = kDenseLayer,
    .moe_layer = kMoeLayer,
    .mla = true,
    .correction_bias = true,
    .first_k_dense = true,
    .dense_tp_setting = true,
};

}  // namespace xfer
