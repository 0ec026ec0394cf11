// Small models of every architecture with random widths and random parallelism.
#ifndef XFER_TESTS_UNIT_COMMON_LAYOUT_RANDOM_SPEC_H_
#define XFER_TESTS_UNIT_COMMON_LAYOUT_RANDOM_SPEC_H_

#include <random>
#include <string>

#include "common/model/model.h"

namespace xfer {

// Valid, see Validate().
ModelSpec RandomSpec(const std::string& architecture, std::mt19937& rng);

inline constexpr const char* kArchitectureNames[] = {
    "Qwen3ForCausalLM",       "Qwen3MoeForCausalLM",   "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM", "DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM",
    "DeepseekV32ForCausalLM"};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COMMON_LAYOUT_RANDOM_SPEC_H_
