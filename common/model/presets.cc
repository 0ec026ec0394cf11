#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/embedded_presets.h"
#include "common/model/model.h"
#include "spdlog/spdlog.h"

namespace xfer {
namespace {

std::vector<ModelSpec> ParseEmbedded() {
  std::vector<ModelSpec> out;
  for (const EmbeddedPreset& preset : EmbeddedPresets()) {
    absl::StatusOr<ModelSpec> spec = ParseModelSpec(preset.json);
    if (!spec.ok()) {
      // The file is part of the program and its tests parse it, so this is a broken build.
      spdlog::critical("preset {}: {}", std::string(preset.file), spec.status().ToString());
      std::abort();
    }
    out.push_back(*std::move(spec));
  }
  std::sort(out.begin(), out.end(),
            [](const ModelSpec& a, const ModelSpec& b) { return a.name < b.name; });
  return out;
}

}  // namespace

const std::vector<ModelSpec>& Presets() {
  static const std::vector<ModelSpec>& presets = *new std::vector<ModelSpec>(ParseEmbedded());
  return presets;
}

absl::StatusOr<ModelSpec> FindPreset(absl::string_view name) {
  std::string known;
  for (const ModelSpec& spec : Presets()) {
    if (spec.name == name) return spec;
    absl::StrAppend(&known, known.empty() ? "" : ", ", spec.name);
  }
  return absl::NotFoundError(absl::StrCat("no preset \"", name, "\"; there are ", known));
}

}  // namespace xfer
