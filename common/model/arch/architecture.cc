#include "common/model/arch/architecture.h"

#include "absl/strings/str_cat.h"
#include "common/model/arch/blocks.h"

namespace xfer {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kQwen3, &kQwen3Moe, &kGlm4Moe, &kGlm4MoeLite, &kDeepseekV3, &kGlmMoeDsa, &kDeepseekV32,
};

}  // namespace

const Architecture* FindArchitecture(absl::string_view name) {
  for (const Architecture* a : kArchitectures) {
    if (a->name == name) return a;
  }
  return nullptr;
}

std::string KnownArchitectures() {
  std::string out;
  for (const Architecture* a : kArchitectures) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", a->name);
  }
  return out;
}

}  // namespace xfer
