// xferctl list: the models known.
#include <memory>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/model_choice.h"

namespace xfer {
namespace {

struct ListOptions {};

// The coordinator's where one is named, else the presets.
absl::StatusOr<std::vector<ModelSpec>> AllModels(const Context& context) {
  if (!context.CoordinatorGiven()) return Presets();
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(const v1::ListModelsReply reply, client->ListModels());
  std::vector<ModelSpec> out;
  for (const v1::Model& model : reply.models()) {
    XFER_ASSIGN_OR_RETURN(out.emplace_back(), ParseModelSpec(model.spec_json()));
  }
  return out;
}

absl::Status RunList(Context& context, const ListOptions&) {
  nlohmann::json document = nlohmann::json::array();
  Table table({{"MODEL"},
               {"NODES", Align::kRight},
               {"GPUS", Align::kRight},
               {"LAYERS", Align::kRight},
               {"SIZE", Align::kRight},
               {"TRAINING"},
               {"ROLLOUT"}});
  XFER_ASSIGN_OR_RETURN(const std::vector<ModelSpec> models, AllModels(context));
  for (const ModelSpec& spec : models) {
    XFER_ASSIGN_OR_RETURN(const TensorTable tensors, BuildTensorTable(spec.config));
    const int32_t gpus = spec.train.world + spec.rollout.world;
    table.AddRow({spec.name, absl::StrCat(spec.nodes), absl::StrCat(gpus),
                  absl::StrCat(spec.config.num_hidden_layers), HumanBytes(tensors.total_bytes()),
                  absl::StrCat(spec.train.world, " x ", Describe(spec.train)),
                  Describe(spec.rollout)});
    document.push_back({{"name", spec.name},
                        {"nodes", spec.nodes},
                        {"gpus", gpus},
                        {"gpus_per_node", spec.gpus_per_node},
                        {"layers", spec.config.num_hidden_layers},
                        {"bytes", tensors.total_bytes()},
                        {"train", nlohmann::json::parse(ToJson(spec)).at("train")},
                        {"rollout", nlohmann::json::parse(ToJson(spec)).at("rollout")}});
  }
  if (context.json()) {
    context.Print(document);
  } else {
    context.Print(table);
  }
  return absl::OkStatus();
}

}  // namespace

void AddListCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "list",
      "Models known (of the coordinator where one is given), with nodes, GPUs and parallelism");
  SetAction(*command, context, std::make_shared<ListOptions>(), &RunList);
}

}  // namespace xfer
