#include "xferctl/model_choice.h"

#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/files.h"
#include "xferctl/exit.h"

namespace xfer {
namespace {

constexpr uint64_t kMaxModelFileBytes = 1 << 20;  // ParseModelSpec() takes no more

std::string JoinFactors(const std::vector<std::pair<const char*, int32_t>>& factors) {
  std::vector<std::string> parts;
  for (const auto& [name, factor] : factors) {
    if (factor > 1) parts.push_back(absl::StrCat(name, " ", factor));
  }
  return parts.empty() ? "TP 1" : absl::StrJoin(parts, ", ");
}

}  // namespace

void AddModelOptions(CLI::App& command, ModelOptions& options) {
  command
      .add_option("model", options.name,
                  "Model, as `xferctl list` shows them, or the path of a model file (*.json)")
      ->required();
  command.add_option("--layers", options.layers, "Keep the first N layers only")->type_name("N");
  command.add_flag("--tiny", options.tiny,
                   "Shrink widths; layers, heads, experts and parallelism stay");
}

absl::StatusOr<ModelSpec> CutLayers(const ModelSpec& spec, int64_t layers) {
  ModelSpec cut = spec;
  XFER_ASSIGN_OR_RETURN(cut.config, KeepLayers(spec.config, layers));
  cut.train.mtp_layers = 0;  // they stand behind the last layer, which is gone
  const int64_t stages = spec.train.pp;
  cut.train.last_stage_layers.reset();
  if (layers % stages != 0) {
    // All stages but the last one share alike; the last takes what is left, and at least one layer.
    int64_t each = (layers + stages - 1) / stages;
    if (layers - each * (stages - 1) < 1) each = layers / stages;
    cut.train.last_stage_layers = static_cast<int32_t>(layers - each * (stages - 1));
  }
  return cut;
}

bool IsModelFile(absl::string_view name) { return absl::EndsWith(name, ".json"); }

absl::StatusOr<std::string> ReadModelFile(const std::string& path) {
  return ReadFile(path, kMaxModelFileBytes);
}

absl::StatusOr<ModelSpec> FindModel(const std::string& name, CoordinatorClient* registry) {
  if (IsModelFile(name)) {
    auto text = ReadModelFile(name);
    if (!text.ok()) return AsUsageError(text.status());
    auto spec = ParseModelSpec(*text);
    if (!spec.ok()) return InContext(AsUsageError(spec.status()), name);
    return spec;
  }
  if (registry == nullptr) {
    auto spec = FindPreset(name);
    if (!spec.ok()) return AsUsageError(spec.status());
    return spec;
  }
  auto model = registry->GetModel(name);
  if (absl::IsNotFound(model.status())) return AsUsageError(model.status());
  if (!model.ok()) return model.status();
  return ParseModelSpec(model->spec_json());
}

absl::StatusOr<ModelSpec> ChooseModel(const ModelOptions& options, CoordinatorClient* registry) {
  auto spec = FindModel(options.name, registry);
  if (!spec.ok()) return spec.status();
  if (options.layers.has_value() && *options.layers != spec->config.num_hidden_layers) {
    auto cut = CutLayers(*spec, *options.layers);
    if (!cut.ok())
      return InContext(AsUsageError(cut.status()), absl::StrCat("--layers ", *options.layers));
    spec = std::move(cut);
  }
  if (options.tiny) {
    spec = Shrink(*spec);
    if (!spec.ok())
      return InContext(AsUsageError(spec.status()), absl::StrCat("--tiny of ", options.name));
  }
  if (const absl::Status valid = Validate(*spec); !valid.ok()) {
    return InContext(AsUsageError(valid), ChoiceName(spec->name, options));
  }
  return spec;
}

std::string ChoiceName(absl::string_view model, const ModelOptions& options) {
  return absl::StrCat(
      model, options.layers.has_value() ? absl::StrCat("-layers", *options.layers) : std::string(),
      options.tiny ? "-tiny" : "");
}

std::string Describe(const TrainParallelism& train) {
  return JoinFactors(
      {{"TP", train.tp}, {"PP", train.pp}, {"CP", train.cp}, {"EP", train.ep}, {"ETP", train.etp}});
}

std::string Describe(const RolloutParallelism& rollout) {
  return absl::StrCat(rollout.engines(), " x ",
                      JoinFactors({{"TP", rollout.gpus_per_engine},
                                   {"EP", rollout.ep},
                                   {"DP", rollout.dp_attention_effective() ? rollout.dp : 1}}));
}

}  // namespace xfer
