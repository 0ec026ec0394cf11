// xferctl models show NAME: one model's row of the registry.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/exit.h"
#include "xferctl/model_choice.h"

namespace xfer {
namespace {

struct ShowOptions {
  std::string name;
};

// From the coordinator where one is named, else from the presets.
absl::StatusOr<ModelSpec> Find(const Context& context, const std::string& name) {
  if (!context.CoordinatorGiven()) {
    auto spec = FindPreset(name);
    if (!spec.ok()) return AsUsageError(spec.status());
    return spec;
  }
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  auto model = client->GetModel(name);
  if (absl::IsNotFound(model.status())) return AsUsageError(model.status());
  if (!model.ok()) return model.status();
  return ParseModelSpec(model->spec_json());
}

absl::Status RunShow(Context& context, const ShowOptions& options) {
  XFER_ASSIGN_OR_RETURN(const ModelSpec spec, Find(context, options.name));
  if (context.json()) {
    context.Print(nlohmann::json::parse(ToJson(spec)));
    return absl::OkStatus();
  }
  XFER_ASSIGN_OR_RETURN(const TensorTable tensors, BuildTensorTable(spec.config));
  const HfConfig& config = spec.config;
  Table table({{"FIELD"}, {"VALUE"}});
  const auto add = [&table](const char* field, const auto& value) {
    table.AddRow({field, absl::StrCat(value)});
  };
  add("name", spec.name);
  add("repository", spec.hf_repo);
  add("architecture", config.architecture);
  add("type", Name(config.dtype));
  add("layers", config.num_hidden_layers);
  add("hidden size", config.hidden_size);
  add("vocabulary", config.vocab_size);
  add("attention heads", config.num_attention_heads);
  if (!config.is_mla()) add("key/value heads", config.num_key_value_heads);
  if (config.is_moe()) add("experts", config.num_experts);
  add("tensors", tensors.size());
  add("checkpoint", HumanBytes(tensors.total_bytes()));
  add("nodes", absl::StrCat(spec.nodes, " x ", spec.gpus_per_node, " GPUs"));
  add("training", absl::StrCat(spec.train.world, " ranks, ", Describe(spec.train)));
  add("rollout", absl::StrCat(spec.rollout.world, " ranks, ", Describe(spec.rollout)));
  add("buffer", absl::StrCat(spec.buffer_size_gb, " GB"));
  add("transfer timeout", absl::StrCat(spec.transfer_timeout_s, " s"));
  context.Print(table);
  return absl::OkStatus();
}

}  // namespace

void AddModelsCommand(CLI::App& app, Context& context) {
  CLI::App* models = app.add_subcommand("models", "The model registry");
  models->require_subcommand(1);
  auto options = std::make_shared<ShowOptions>();
  CLI::App* show = models->add_subcommand("show", "One model: shape, size, parallelism");
  show->add_option("name", options->name, "Model; `xferctl list` shows them")->required();
  SetAction(*show, context, options, &RunShow);
}

}  // namespace xfer
