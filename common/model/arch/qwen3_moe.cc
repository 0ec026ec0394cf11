#include "common/model/arch/blocks.h"

namespace xfer {
namespace {
constexpr const Block* kMoeLayer[] = {&kGqaAttention, &kMoeMlp};
}  // namespace

// Every layer has experts.
const Architecture kQwen3Moe = {
    .name = "Qwen3MoeForCausalLM",
    .moe_layer = kMoeLayer,
    .qk_norm = Architecture::QkNorm::kAlways,
};

}  // namespace xfer
