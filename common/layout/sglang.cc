// sglang's layout of one engine rank: its parameters as they stand after loading, before any
// post-load step (which the engine runs itself once the weights are there).
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/builder.h"
#include "common/layout/layout.h"
#include "common/model/arch/architecture.h"

namespace xfer {
namespace {

constexpr int64_t kVocabularyUnit = 64;

void SetSlices(const Architecture& arch, const HfConfig& config, const RolloutParallelism& rollout,
               int64_t rank, LayoutBuilder& builder) {
  const int64_t engine = rollout.gpus_per_engine;
  const int64_t attention = rollout.attention_tp();
  const int64_t in_attention = rank % attention;
  builder.SetSlice(Shard::kAttention, {in_attention, attention});
  if (!config.is_mla()) {
    // With more ranks than KV heads, neighbouring ranks keep the same one.
    const int64_t kv_parts = std::min(attention, config.num_key_value_heads);
    builder.SetSlice(Shard::kKvHeads, {in_attention / (attention / kv_parts), kv_parts});
  }
  builder.SetSlice(Shard::kEngine, {rank, engine});
  const bool dense_whole = arch.dense_tp_setting && rollout.moe_dense_tp == 1;
  builder.SetSlice(Shard::kDenseMlp, dense_whole ? Slice{0, 1} : Slice{rank, engine});
  const int64_t moe_tensor = engine / rollout.ep;
  builder.SetSlice(Shard::kMoeTensor, {rank % moe_tensor, moe_tensor});
  const int64_t experts = config.num_experts / rollout.ep;
  builder.SetExperts(rank / moe_tensor * experts, experts);
}

}  // namespace

absl::StatusOr<RankLayout> SglangLayout(const ModelSpec& spec, const TensorTable& table,
                                        int32_t rank) {
  const HfConfig& config = spec.config;
  const RolloutParallelism& rollout = spec.rollout;
  XFER_RETURN_IF_ERROR(Validate(spec));
  XFER_RETURN_IF_ERROR(RefuseQuantised(config, "sglang"));
  if (rank < 0 || rank >= rollout.gpus_per_engine) {
    return absl::InvalidArgumentError(absl::StrCat("rollout rank ", rank, " of an engine of model ",
                                                   spec.name, " must be 0 to ",
                                                   rollout.gpus_per_engine - 1));
  }
  const Architecture* const arch = FindArchitecture(config.architecture);
  LayoutBuilder builder(config, table);
  SetSlices(*arch, config, rollout, rank, builder);

  const int64_t vocabulary =
      (config.vocab_size + kVocabularyUnit - 1) / kVocabularyUnit * kVocabularyUnit;
  const Slice all{rank, rollout.gpus_per_engine};
  const Slice attention{rank % rollout.attention_tp(), rollout.attention_tp()};
  constexpr absl::string_view kEmbedding = "model.embed_tokens.weight";
  XFER_RETURN_IF_ERROR(builder.AddVocabulary(kEmbedding, kEmbedding, vocabulary,
                                             rollout.dp_attention_effective() ? attention : all));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    for (const Block* block : arch->layer(config.layer_is_moe(layer))) {
      XFER_RETURN_IF_ERROR(builder.AddRows(block->sglang, prefix, prefix));
    }
  }
  XFER_RETURN_IF_ERROR(builder.AddWhole("model.norm.weight", "model.norm.weight"));
  // A tied head is the embedding itself and no parameter of its own.
  if (!config.tie_word_embeddings) {
    constexpr absl::string_view kHead = "lm_head.weight";
    XFER_RETURN_IF_ERROR(builder.AddVocabulary(kHead, kHead, vocabulary,
                                               rollout.dp_lm_head_effective() ? attention : all));
  }
  return std::move(builder).Take();
}

}  // namespace xfer
