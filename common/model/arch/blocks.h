// The blocks that architectures are made of.
#ifndef XFER_COMMON_MODEL_ARCH_BLOCKS_H_
#define XFER_COMMON_MODEL_ARCH_BLOCKS_H_

#include "common/model/arch/architecture.h"

namespace xfer {

// Attention, the norm before it included.
extern const Block kGqaAttention;  // grouped queries
extern const Block kMlaAttention;  // multi-head latent attention with a query latent
extern const Block kIndexer;       // sparse-attention indexer, beside kMlaAttention

// Feed-forward part, the norm before it included.
extern const Block kDenseMlp;
extern const Block kMoeMlp;
// Behind kMoeMlp where the architecture may have shared experts.
extern const Block kSharedExperts;

// What a multi-token-prediction layer has beside an ordinary layer. Megatron's names follow
// "mtp.layers.K." here; sglang has none of it.
extern const Block kMtpExtras;

// Every Architecture, in the files of the same name.
extern const Architecture kQwen3;
extern const Architecture kQwen3Moe;
extern const Architecture kGlm4Moe;
extern const Architecture kGlm4MoeLite;
extern const Architecture kDeepseekV3;
extern const Architecture kGlmMoeDsa;
extern const Architecture kDeepseekV32;  // in kGlmMoeDsa's file

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_ARCH_BLOCKS_H_
