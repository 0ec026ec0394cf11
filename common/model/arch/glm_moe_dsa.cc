#include "common/model/arch/blocks.h"

namespace xfer {
namespace {
constexpr const Block* kDenseLayer[] = {&kMlaAttention, &kIndexer, &kDenseMlp};
constexpr const Block* kMoeLayer[] = {&kMlaAttention, &kIndexer, &kMoeMlp, &kSharedExperts};
}  // namespace

const Architecture kGlmMoeDsa = {
    .name = "GlmMoeDsaForCausalLM",
    .dense_layer = kDenseLayer,
    .moe_layer = kMoeLayer,
    .mla = true,
    .indexer = true,
    .correction_bias = true,
    .first_k_dense = true,
    .dense_tp_setting = true,
};

}  // namespace xfer
