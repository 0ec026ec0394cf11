// xferctl list: the models known.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/model_choice.h"

namespace xfer {
namespace {

struct ListOptions {};

absl::Status RunList(Context& context, const ListOptions&) {
  nlohmann::json document = nlohmann::json::array();
  Table table({{"MODEL"},
               {"NODES", Align::kRight},
               {"GPUS", Align::kRight},
               {"LAYERS", Align::kRight},
               {"SIZE", Align::kRight},
               {"TRAINING"},
               {"ROLLOUT"}});
  for (const ModelSpec& spec : Presets()) {
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
  CLI::App* command = app.add_subcommand("list", "Models known, with nodes, GPUs and parallelism");
  SetAction(*command, context, std::make_shared<ListOptions>(), &RunList);
}

}  // namespace xfer
