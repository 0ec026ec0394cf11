// Megatron-core's layout, as the trainers that we know run it: names without the "module.module."
// prefix, layer and expert numbers local to the rank.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/builder.h"
#include "common/layout/layout.h"
#include "common/model/arch/architecture.h"
#include "common/model/arch/blocks.h"
#include "common/model/vocabulary.h"

namespace xfer {
namespace {

constexpr absl::string_view kEmbedding = "embedding.word_embeddings.weight";
constexpr absl::string_view kHead = "output_layer.weight";
constexpr absl::string_view kHfEmbedding = "model.embed_tokens.weight";
constexpr absl::string_view kHfHead = "lm_head.weight";

absl::Status AddLayer(const Architecture& arch, const HfConfig& config, int64_t layer,
                      absl::string_view prefix, LayoutBuilder& builder) {
  const std::string hf_prefix = absl::StrCat("model.layers.", layer, ".");
  for (const Block* block : arch.layer(config.layer_is_moe(layer))) {
    XFER_RETURN_IF_ERROR(builder.AddRows(block->megatron, hf_prefix, prefix));
  }
  return absl::OkStatus();
}

absl::Status AddMtp(const Architecture& arch, const HfConfig& config, int64_t depth,
                    LayoutBuilder& builder) {
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t layer = config.num_hidden_layers + k;
    const std::string prefix = absl::StrCat("mtp.layers.", k, ".");
    XFER_RETURN_IF_ERROR(
        builder.AddRows(kMtpExtras.megatron, absl::StrCat("model.layers.", layer, "."), prefix));
    XFER_RETURN_IF_ERROR(
        AddLayer(arch, config, layer, absl::StrCat(prefix, "transformer_layer."), builder));
  }
  return absl::OkStatus();
}

}  // namespace

MegatronCoordinates MegatronCoordinatesOf(const TrainParallelism& train, int32_t rank) {
  const int32_t stage = train.world / train.pp;
  const int32_t q = rank % stage;
  return {
      .tp = q % train.tp,
      .cp = q / train.tp % train.cp,
      .dp = q / (train.tp * train.cp),
      .pp = rank / stage,
      .etp = q % train.etp,
      .ep = q / train.etp % train.ep,
      .edp = q / (train.etp * train.ep),
  };
}

std::pair<int64_t, int64_t> StageLayers(const HfConfig& config, const TrainParallelism& train,
                                        int32_t pp) {
  const int64_t layers = config.num_hidden_layers;
  const int64_t last = train.last_stage_layers.value_or(layers / train.pp);
  const int64_t each = train.pp == 1 ? layers : (layers - last) / (train.pp - 1);
  const int64_t first = pp * each;
  return {first, pp == train.pp - 1 ? layers : first + each};
}

absl::StatusOr<RankLayout> MegatronLayout(const ModelSpec& spec, const TensorTable& table,
                                          int32_t rank) {
  const HfConfig& config = spec.config;
  const TrainParallelism& train = spec.train;
  XFER_RETURN_IF_ERROR(Validate(spec));
  XFER_RETURN_IF_ERROR(RefuseQuantised(config, "Megatron"));
  if (rank < 0 || rank >= train.world) {
    return absl::InvalidArgumentError(absl::StrCat("training rank ", rank, " of model ", spec.name,
                                                   " must be 0 to ", train.world - 1));
  }
  const Architecture* const arch = FindArchitecture(config.architecture);
  const MegatronCoordinates at = MegatronCoordinatesOf(train, rank);
  const bool first_stage = at.pp == 0;
  const bool last_stage = at.pp == train.pp - 1;
  const Slice tensor{at.tp, train.tp};

  LayoutBuilder builder(config, table);
  builder.SetSlice(Shard::kTensor, tensor);
  builder.SetSlice(Shard::kExpertTensor, {at.etp, train.etp});
  const int64_t experts = config.num_experts / train.ep;
  builder.SetExperts(at.ep * experts, experts);

  const int64_t vocabulary = PaddedVocabulary(config.vocab_size, train);
  // An MTP layer embeds tokens itself, so its stage keeps a copy.
  if (first_stage || (last_stage && train.mtp_layers > 0)) {
    XFER_RETURN_IF_ERROR(builder.AddVocabulary(kEmbedding, kHfEmbedding, vocabulary, tensor));
  }
  const auto [first, end] = StageLayers(config, train, at.pp);
  for (int64_t layer = first; layer < end; ++layer) {
    XFER_RETURN_IF_ERROR(AddLayer(*arch, config, layer,
                                  absl::StrCat("decoder.layers.", layer - first, "."), builder));
  }
  if (last_stage) {
    XFER_RETURN_IF_ERROR(builder.AddWhole("decoder.final_layernorm.weight", "model.norm.weight"));
    // Tied weights are one tensor where both ends are on one stage; else the last stage keeps a
    // copy.
    if (!config.tie_word_embeddings || !first_stage) {
      XFER_RETURN_IF_ERROR(builder.AddVocabulary(
          kHead, config.tie_word_embeddings ? kHfEmbedding : kHfHead, vocabulary, tensor));
    }
    XFER_RETURN_IF_ERROR(AddMtp(*arch, config, train.mtp_layers, builder));
  }
  return std::move(builder).Take();
}

}  // namespace xfer
