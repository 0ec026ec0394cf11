// The model that a command is about: one of the registry or of a file, cut to some layers or
// shrunk.
#ifndef XFER_XFERCTL_MODEL_CHOICE_H_
#define XFER_XFERCTL_MODEL_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/coordinator_client.h"
#include "common/model/model.h"

namespace CLI {
class App;
}  // namespace CLI

namespace xfer {

struct ModelOptions {
  std::string name;
  std::optional<int64_t> layers;
  bool tiny = false;
};

// Adds MODEL, --layers and --tiny.
void AddModelOptions(CLI::App& command, ModelOptions& options);

// Whether a model is given by the path of its file ("my-model.json") and not by name.
bool IsModelFile(absl::string_view name);
// The text of such a file. Errors name the path.
absl::StatusOr<std::string> ReadModelFile(const std::string& path);

// A preset by its name, or a model file's content; with `registry` (may be null) the coordinator's
// models stand in for the presets. Usage error: an unknown model (names the known ones), a file
// that is none.
absl::StatusOr<ModelSpec> FindModel(const std::string& name, CoordinatorClient* registry);

// The model as the options want it, valid; FindModel()'s errors. Usage error also: a number of
// layers that the model or its stages cannot have.
absl::StatusOr<ModelSpec> ChooseModel(const ModelOptions& options,
                                      CoordinatorClient* registry = nullptr);

// "Qwen3-4B-layers4-tiny": names the directory and the job of such a model. `model` is its name.
std::string ChoiceName(absl::string_view model, const ModelOptions& options);

// Keeps the first layers of a spec and fits the pipeline's last stage to what is left.
absl::StatusOr<ModelSpec> CutLayers(const ModelSpec& spec, int64_t layers);

// "TP 2, PP 1, CP 2, EP 1, ETP 1" without the ones.
std::string Describe(const TrainParallelism& train);
std::string Describe(const RolloutParallelism& rollout);

}  // namespace xfer

#endif  // XFER_XFERCTL_MODEL_CHOICE_H_
