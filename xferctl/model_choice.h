// The model that a command is about: a preset, cut to some layers or shrunk.
#ifndef XFER_XFERCTL_MODEL_CHOICE_H_
#define XFER_XFERCTL_MODEL_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
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

// The preset as the options want it, valid. Usage error: an unknown model (names the known ones), a
// number of layers that the model or its stages cannot have.
absl::StatusOr<ModelSpec> ChooseModel(const ModelOptions& options);

// "Qwen3-4B-layers4-tiny": names the directory and the job of such a model.
std::string ChoiceName(const ModelOptions& options);

// Keeps the first layers of a spec and fits the pipeline's last stage to what is left.
absl::StatusOr<ModelSpec> CutLayers(const ModelSpec& spec, int64_t layers);

// "TP 2, PP 1, CP 2, EP 1, ETP 1" without the ones.
std::string Describe(const TrainParallelism& train);
std::string Describe(const RolloutParallelism& rollout);

}  // namespace xfer

#endif  // XFER_XFERCTL_MODEL_CHOICE_H_
