#include "common/model/arch/blocks.h"

namespace xfer {
namespace {
constexpr const Block* kDenseLayer[] = {&kGqaAttention, &kDenseMlp};
}  // namespace

const Architecture kQwen3 = {
    .name = "Qwen3ForCausalLM",
    .dense_layer = kDenseLayer,
    .qk_norm = Architecture::QkNorm::kAlways,
};

}  // namespace xfer
