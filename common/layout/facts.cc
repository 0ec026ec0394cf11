#include "common/layout/facts.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/layout/layout.h"
#include "common/model/vocabulary.h"

namespace xfer {
namespace {

absl::Status AddRank(const absl::StatusOr<RankLayout>& layout, BytesRange& range) {
  if (!layout.ok()) return layout.status();
  uint64_t bytes = 0;
  for (const LocalTensor& tensor : layout->tensors) {
    bytes += static_cast<uint64_t>(NumElements(tensor.shape) * SizeOf(tensor.dtype));
  }
  range.least = range.most == 0 ? bytes : std::min(range.least, bytes);
  range.most = std::max(range.most, bytes);
  return absl::OkStatus();
}

absl::Status AddTraining(const ModelSpec& spec, const TensorTable& table, ModelFacts& facts) {
  const TrainParallelism& train = spec.train;
  facts.ranks_a_stage = train.world / train.pp;
  facts.dp = facts.ranks_a_stage / (train.tp * train.cp);
  facts.padded_vocab = PaddedVocabulary(spec.config.vocab_size, train);
  if (spec.config.is_moe()) {
    facts.expert_dp = facts.ranks_a_stage / (train.etp * train.ep);
    facts.train_experts_a_rank = spec.config.num_experts / train.ep;
  }
  for (int32_t pp = 0; pp < train.pp; ++pp) {
    ModelFacts::Stage& stage = facts.stages.emplace_back();
    const auto [first, end] = StageLayers(spec.config, train, pp);
    stage.first_layer = first;
    stage.layers = end - first;
    for (int32_t rank = 0; rank < facts.ranks_a_stage; ++rank) {
      XFER_RETURN_IF_ERROR(
          AddRank(MegatronLayout(spec, table, pp * facts.ranks_a_stage + rank), stage.rank_bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status AddRollout(const ModelSpec& spec, const TensorTable& table, ModelFacts& facts) {
  const HfConfig& config = spec.config;
  const RolloutParallelism& rollout = spec.rollout;
  facts.engines = rollout.engines();
  facts.attention_tp = rollout.attention_tp();
  facts.query_heads_a_rank = config.num_attention_heads / facts.attention_tp;
  if (!config.is_mla()) {
    facts.kv_heads_a_rank = std::max<int64_t>(1, config.num_key_value_heads / facts.attention_tp);
    facts.kv_head_copies = std::max<int64_t>(1, facts.attention_tp / config.num_key_value_heads);
  }
  if (config.is_moe()) {
    facts.moe_tp = rollout.gpus_per_engine / rollout.ep;
    facts.rollout_experts_a_rank = config.num_experts / rollout.ep;
  }
  for (int32_t rank = 0; rank < rollout.gpus_per_engine; ++rank) {
    XFER_RETURN_IF_ERROR(AddRank(SglangLayout(spec, table, rank), facts.engine_rank_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelFacts> DeriveFacts(const ModelSpec& spec) {
  XFER_RETURN_IF_ERROR(Validate(spec));
  XFER_ASSIGN_OR_RETURN(const TensorTable table, BuildTensorTable(spec.config));
  ModelFacts facts;
  facts.tensors = table.size();
  facts.checkpoint_bytes = static_cast<uint64_t>(table.total_bytes());
  XFER_RETURN_IF_ERROR(AddTraining(spec, table, facts));
  XFER_RETURN_IF_ERROR(AddRollout(spec, table, facts));
  return facts;
}

}  // namespace xfer
