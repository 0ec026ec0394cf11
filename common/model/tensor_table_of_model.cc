#include <array>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/model/arch/architecture.h"
#include "common/model/arch/blocks.h"
#include "common/model/model.h"

namespace xfer {
namespace {

class Builder {
 public:
  explicit Builder(const HfConfig& config) : config_(config) {}

  void AddPlain(std::string name, Dims shape) {
    table_.Add(std::move(name), config_.dtype, std::move(shape));
  }

  void AddBlock(const Block& block, int64_t layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    for (const HfTensor& row : block.hf) {
      if (!absl::StrContains(row.name, kExpert)) AddRow(row, absl::StrCat(prefix, row.name));
    }
    // An expert's tensors stand together, as checkpoints have them.
    for (int64_t e = 0; e < config_.num_experts; ++e) {
      for (const HfTensor& row : block.hf) {
        if (!absl::StrContains(row.name, kExpert)) continue;
        AddRow(row,
               absl::StrCat(prefix, absl::StrReplaceAll(row.name, {{kExpert, absl::StrCat(e)}})));
      }
    }
  }

  TensorTable Take() && { return std::move(table_); }

 private:
  void AddRow(const HfTensor& row, std::string name) {
    if (row.when != nullptr && !row.when(config_)) return;
    Dims shape = {row.rows(config_)};
    if (row.cols != nullptr) shape.push_back(row.cols(config_));
    if (!row.linear || !config_.fp8_block.has_value()) {
      table_.Add(std::move(name), row.float32 ? DType::kF32 : config_.dtype, std::move(shape));
      return;
    }
    const std::array<int64_t, 2> block = *config_.fp8_block;
    const Dims scale = {(shape[0] + block[0] - 1) / block[0], (shape[1] + block[1] - 1) / block[1]};
    const std::string scale_name = absl::StrCat(name, "_scale_inv");
    table_.Add(std::move(name), DType::kF8E4M3, std::move(shape));
    table_.Add(scale_name, DType::kF32, scale);
  }

  const HfConfig& config_;
  TensorTable table_;
};

}  // namespace

absl::StatusOr<TensorTable> BuildTensorTable(const HfConfig& config) {
  const Architecture* const arch = FindArchitecture(config.architecture);
  if (arch == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown architecture \"", config.architecture,
                                                   "\"; known are ", KnownArchitectures()));
  }
  Builder builder(config);
  const Dims vocab = {config.vocab_size, config.hidden_size};
  builder.AddPlain("model.embed_tokens.weight", vocab);
  const int64_t layers = config.num_hidden_layers;
  for (int64_t l = 0; l < layers; ++l) {
    for (const Block* block : arch->layer(config.layer_is_moe(l))) builder.AddBlock(*block, l);
  }
  builder.AddPlain("model.norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) builder.AddPlain("lm_head.weight", vocab);
  for (int64_t l = layers; l < layers + config.num_nextn_predict_layers; ++l) {
    for (const Block* block : arch->layer(config.layer_is_moe(l))) builder.AddBlock(*block, l);
    builder.AddBlock(kMtpExtras, l);
  }
  return std::move(builder).Take();
}

}  // namespace xfer
