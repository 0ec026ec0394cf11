// What xfer knows of a model: its Hugging Face config, how it is trained and served, and what
// follows.
#ifndef XFER_COMMON_MODEL_MODEL_H_
#define XFER_COMMON_MODEL_MODEL_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/dtype.h"
#include "common/model/tensor_table.h"

namespace xfer {

// The shape-bearing fields of config.json, under its own names. A field that an architecture does
// not have is 0 (or false, or nullopt). `raw` is the whole document, so that writing it back loses
// nothing.
struct HfConfig {
  std::string raw;           // config.json as text
  std::string architecture;  // architectures[0], e.g. "Qwen3ForCausalLM"
  DType dtype = DType::kBF16;
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // dense MLP
  int64_t vocab_size = 0;
  bool tie_word_embeddings = false;
  // Attention with grouped queries.
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  bool attention_bias = false;
  bool qk_norm = false;  // per-head RMS norms of queries and keys
  // Multi-head latent attention; kv_lora_rank != 0 marks it.
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  // Sparse-attention indexer; index_n_heads != 0 marks it.
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  bool indexer_rope_interleave = false;
  // Mixture of experts; num_experts != 0 marks it (num_experts or n_routed_experts in the file).
  int64_t num_experts = 0;
  int64_t moe_intermediate_size = 0;
  int64_t n_shared_experts = 0;
  int64_t first_k_dense_replace = 0;  // layers below it are dense
  bool correction_bias = false;       // the router has e_score_correction_bias, float32
  // Multi-token-prediction layers that the checkpoint stores behind the main ones.
  int64_t num_nextn_predict_layers = 0;
  bool mtp_stores_embed_and_head = false;
  // Block quantisation of the checkpoint's linear weights (fp8 e4m3 with weight_scale_inv).
  std::optional<std::array<int64_t, 2>> fp8_block;

  bool is_mla() const { return kv_lora_rank != 0; }
  bool is_moe() const { return num_experts != 0; }
  bool layer_is_moe(int64_t layer) const { return is_moe() && layer >= first_k_dense_replace; }
};

// InvalidArgument names the field, its value and what is accepted. An unknown architecture names
// those that are known.
absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json);
// The same model with its first `layers` layers only (and no MTP layers). InvalidArgument where
// `layers` is out of range.
absl::StatusOr<HfConfig> KeepLayers(const HfConfig& config, int64_t layers);

// Training parallelism in Megatron's terms. Rank order within the world, fastest first:
// tp, cp, ep, dp, pp; the dense grid (tp, cp, dp) and the expert grid (etp, ep, edp) overlay.
struct TrainParallelism {
  int32_t world = 1;  // ranks
  int32_t tp = 1;
  int32_t pp = 1;
  int32_t cp = 1;
  int32_t ep = 1;
  int32_t etp = 1;
  std::optional<int32_t> last_stage_layers;  // decoder_last_pipeline_num_layers
  int32_t vocab_divisor = 128;               // make_vocab_size_divisible_by
  int32_t mtp_layers = 0;                    // MTP layers that are trained
};

// Rollout parallelism in sglang's terms.
struct RolloutParallelism {
  int32_t world = 1;            // ranks of all engines together
  int32_t gpus_per_engine = 1;  // sglang's tp_size; pipeline size is always 1
  int32_t ep = 1;
  int32_t dp = 1;
  bool dp_attention = false;  // takes effect only with dp > 1
  bool dp_lm_head = false;    // likewise
  int32_t moe_dense_tp = 0;   // 0: unset

  int32_t engines() const { return world / gpus_per_engine; }
  bool dp_attention_effective() const { return dp_attention && dp > 1; }
  bool dp_lm_head_effective() const { return dp_lm_head && dp > 1; }
  int32_t attention_tp() const {
    return dp_attention_effective() ? gpus_per_engine / dp : gpus_per_engine;
  }
};

// Somebody else's measurement of this profile on other hardware.
struct PublishedTimes {
  double nccl_ms = 0;
  double rdma_ms = 0;
};

// One row of the registry.
struct ModelSpec {
  std::string name;     // "Qwen3-4B"
  std::string hf_repo;  // "Qwen/Qwen3-4B"
  HfConfig config;
  TrainParallelism train;
  RolloutParallelism rollout;
  int32_t nodes = 1;
  int32_t gpus_per_node = 8;
  double buffer_size_gb = 1.0;                     // p2p
  std::optional<double> buffer_size_broadcast_gb;  // where it differs
  int32_t transfer_timeout_s = 300;
  std::optional<PublishedTimes> published;
};

// The tensors of the checkpoint, in a fixed order. Scale tensors stand right behind their weight.
absl::StatusOr<TensorTable> BuildTensorTable(const HfConfig& config);

// Checks that the numbers of a profile fit the model and each other; InvalidArgument states the
// rule and the values.
absl::Status Validate(const ModelSpec& spec);

// The same model with small widths (hidden size, head sizes, feed-forward sizes, vocabulary):
// layers, heads, experts, the stage split and all parallelism stay. The config is a true
// config.json again.
absl::StatusOr<ModelSpec> Shrink(const ModelSpec& spec);

// A spec as one JSON document and back; the form of the presets and of `xferctl models add FILE`.
absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view json);
std::string ToJson(const ModelSpec& spec);

// The presets that ship with xfer, sorted by name. Built once; lives for ever; thread-safe.
const std::vector<ModelSpec>& Presets();
// NotFound names the known models.
absl::StatusOr<ModelSpec> FindPreset(absl::string_view name);

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_MODEL_H_
