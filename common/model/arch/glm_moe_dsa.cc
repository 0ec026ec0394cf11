#include "common/model/arch/blocks.h"

namespace xfer {
namespace {
constexpr const Block* kDenseLayer[] = {&kMlaAttention, &kIndexer, &kDenseMlp};
constexpr const Block* kMoeLayer[] = {&kMlaAttention, &kIndexer, &kMoeMlp, &kSharedExperts};

constexpr Architecture Named(absl::string_view name) {
  return {
      .name = name,
      .dense_layer = kDenseLayer,
      .moe_layer = kMoeLayer,
      .mla = true,
      .indexer = true,
      .correction_bias = true,
      .first_k_dense = true,
      .dense_tp_setting = true,
  };
}
}  // namespace

const Architecture kGlmMoeDsa = Named("GlmMoeDsaForCausalLM");
// Trainers rewrite GLM-5's config to this name before they use it; tensors and their names stay.
const Architecture kDeepseekV32 = Named("DeepseekV32ForCausalLM");

}  // namespace xfer
