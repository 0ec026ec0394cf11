// What follows from a model and its profile, for people who want to see it.
#ifndef XFER_COMMON_LAYOUT_FACTS_H_
#define XFER_COMMON_LAYOUT_FACTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace xfer {

// Bytes of a rank's tensors, padding included, over a group of ranks.
struct BytesRange {
  uint64_t least = 0;
  uint64_t most = 0;
};

struct ModelFacts {
  int32_t tensors = 0;            // of the checkpoint
  uint64_t checkpoint_bytes = 0;  // of their data

  // Training.
  struct Stage {
    int64_t first_layer = 0;  // MTP layers, which stand on the last stage, are not counted
    int64_t layers = 0;
    BytesRange rank_bytes;
  };
  std::vector<Stage> stages;
  int32_t ranks_a_stage = 0;
  int32_t dp = 1;                    // of the dense part: copies beside those of CP
  int32_t expert_dp = 1;             // of the experts; 1 where there are none
  int64_t padded_vocab = 0;          // rows over all TP ranks
  int64_t train_experts_a_rank = 0;  // 0 where there are none

  // Rollout.
  int32_t engines = 0;
  int32_t attention_tp = 1;
  int64_t query_heads_a_rank = 0;
  int64_t kv_heads_a_rank = 0;  // 0 with multi-head latent attention, where no head is split
  int64_t kv_head_copies = 1;   // ranks of one attention group that hold the same KV head
  int32_t moe_tp = 1;           // ranks that share an expert; 1 where there are none
  int64_t rollout_experts_a_rank = 0;
  BytesRange engine_rank_bytes;
};

// Errors are those of Validate() and of the layouts.
absl::StatusOr<ModelFacts> DeriveFacts(const ModelSpec& spec);

}  // namespace xfer

#endif  // XFER_COMMON_LAYOUT_FACTS_H_
