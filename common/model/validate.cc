#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/plain_name.h"
#include "common/base/status.h"
#include "common/model/arch/architecture.h"
#include "common/model/model.h"

namespace xfer {
namespace {

constexpr int32_t kMaxRanks = 1 << 20;
constexpr int64_t kSglangVocabUnit = 64;  // sglang rounds the vocabulary up to it

// A number with the name it has in messages.
struct Named {
  absl::string_view name;
  int64_t value;
};

std::string Show(const Named& n) { return absl::StrCat(n.name, " = ", n.value); }

absl::Status InRange(const Named& n, int64_t min, int64_t max) {
  if (n.value >= min && n.value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Show(n), " must be ", min, " to ", max));
}

// `divisor` (positive) must divide `n`; `why` says what is cut into what.
absl::Status Divides(const Named& divisor, const Named& n, absl::string_view why) {
  if (n.value % divisor.value == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Show(divisor), " must divide ", Show(n), ": ", why));
}

absl::Status ValidateStages(const HfConfig& config, const TrainParallelism& train) {
  const Named layers{"num_hidden_layers", config.num_hidden_layers};
  const Named pp{"train.pp", train.pp};
  if (!train.last_stage_layers.has_value()) {
    return Divides(pp, layers,
                   "pipeline stages have equally many layers unless "
                   "train.last_stage_layers says otherwise");
  }
  const Named last{"train.last_stage_layers", *train.last_stage_layers};
  XFER_RETURN_IF_ERROR(InRange(last, 1, config.num_hidden_layers));
  const int64_t rest = layers.value - last.value;
  if (train.pp == 1) {
    if (rest == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Show(last), " must equal ", Show(layers),
                                                   ", since train.pp = 1 has one stage only"));
  }
  if (rest < train.pp - 1) {
    return absl::InvalidArgumentError(absl::StrCat(Show(last), " leaves ", rest, " of ",
                                                   Show(layers), " for the other ", train.pp - 1,
                                                   " stages; each needs at least one"));
  }
  return Divides({"train.pp - 1", train.pp - 1},
                 {"num_hidden_layers - train.last_stage_layers", rest},
                 "the stages before the last have equally many layers");
}

absl::Status ValidateTrainGrid(const TrainParallelism& t) {
  for (const Named& n : {Named{"train.world", t.world},
                         {"train.tp", t.tp},
                         {"train.pp", t.pp},
                         {"train.cp", t.cp},
                         {"train.ep", t.ep},
                         {"train.etp", t.etp}}) {
    XFER_RETURN_IF_ERROR(InRange(n, 1, kMaxRanks));
  }
  XFER_RETURN_IF_ERROR(InRange({"train.vocab_divisor", t.vocab_divisor}, 1, 1 << 20));
  XFER_RETURN_IF_ERROR(
      Divides({"train.pp", t.pp}, {"train.world", t.world}, "stages have equally many ranks"));
  const Named stage{"ranks of a stage", t.world / t.pp};
  XFER_RETURN_IF_ERROR(Divides({"train.tp * train.cp", int64_t{t.tp} * t.cp}, stage,
                               "what is left is the data parallel size"));
  return Divides({"train.etp * train.ep", int64_t{t.etp} * t.ep}, stage,
                 "what is left is the expert data parallel size");
}

absl::Status ValidateTrain(const HfConfig& c, const TrainParallelism& t) {
  XFER_RETURN_IF_ERROR(ValidateTrainGrid(t));
  XFER_RETURN_IF_ERROR(ValidateStages(c, t));
  const Named tp{"train.tp", t.tp};
  const absl::string_view per_tp = "it is split over the tensor parallel ranks";
  if (c.is_mla()) {
    XFER_RETURN_IF_ERROR(Divides(tp, {"num_attention_heads", c.num_attention_heads}, per_tp));
  } else {
    XFER_RETURN_IF_ERROR(Divides(tp, {"num_key_value_heads", c.num_key_value_heads},
                                 "linear_qkv is split by whole KV groups"));
  }
  if (!c.layer_is_moe(0)) {
    XFER_RETURN_IF_ERROR(Divides(tp, {"intermediate_size", c.intermediate_size}, per_tp));
  }
  XFER_RETURN_IF_ERROR(InRange({"train.mtp_layers", t.mtp_layers}, 0, c.num_nextn_predict_layers));
  if (t.mtp_layers > 0) {
    XFER_RETURN_IF_ERROR(
        Divides(tp, {"hidden_size", c.hidden_size},
                "eh_proj of an MTP layer is split over the tensor parallel ranks"));
  }
  const Named ep{"train.ep", t.ep};
  const Named etp{"train.etp", t.etp};
  if (!c.is_moe()) {
    XFER_RETURN_IF_ERROR(InRange(ep, 1, 1));
    return InRange(etp, 1, 1);
  }
  XFER_RETURN_IF_ERROR(
      Divides(ep, {"the number of experts", c.num_experts}, "expert ranks hold equally many"));
  XFER_RETURN_IF_ERROR(Divides(etp, {"moe_intermediate_size", c.moe_intermediate_size},
                               "it is split over the expert tensor parallel ranks"));
  return Divides(
      tp,
      {"moe_intermediate_size * n_shared_experts", c.moe_intermediate_size * c.n_shared_experts},
      "shared experts are split over the tensor parallel ranks");
}

absl::Status ValidateRolloutGrid(const RolloutParallelism& r) {
  for (const Named& n : {Named{"rollout.world", r.world},
                         {"rollout.gpus_per_engine", r.gpus_per_engine},
                         {"rollout.ep", r.ep},
                         {"rollout.dp", r.dp}}) {
    XFER_RETURN_IF_ERROR(InRange(n, 1, kMaxRanks));
  }
  const Named engine{"rollout.gpus_per_engine", r.gpus_per_engine};
  XFER_RETURN_IF_ERROR(
      Divides(engine, {"rollout.world", r.world}, "engines have equally many ranks"));
  if (r.dp > 1 && !r.dp_attention) {
    return absl::InvalidArgumentError(
        absl::StrCat("rollout.dp = ", r.dp,
                     " needs rollout.dp_attention; replicas without it are "
                     "engines of their own (a larger rollout.world)"));
  }
  if (r.dp_lm_head && !r.dp_attention) {
    return absl::InvalidArgumentError("rollout.dp_lm_head needs rollout.dp_attention");
  }
  XFER_RETURN_IF_ERROR(
      Divides({"rollout.dp", r.dp}, engine, "what is left is the attention tensor parallel size"));
  XFER_RETURN_IF_ERROR(
      Divides({"rollout.ep", r.ep}, engine, "what is left is the MoE tensor parallel size"));
  if (r.moe_dense_tp != 0 && r.moe_dense_tp != 1 && r.moe_dense_tp != r.gpus_per_engine) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.moe_dense_tp = ", r.moe_dense_tp,
                                                   " must be 0 (unset), 1 or ", Show(engine)));
  }
  return absl::OkStatus();
}

absl::Status ValidateRolloutAttention(const HfConfig& c, const RolloutParallelism& r) {
  const Named attention{"attention tensor parallel size", r.attention_tp()};
  XFER_RETURN_IF_ERROR(Divides(attention, {"num_attention_heads", c.num_attention_heads},
                               "ranks hold equally many query heads"));
  if (!c.is_mla() && c.num_key_value_heads % attention.value != 0 &&
      attention.value % c.num_key_value_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Show(attention), " and num_key_value_heads = ", c.num_key_value_heads,
                     ": one must divide the other, for KV heads are split or replicated evenly"));
  }
  const Named vocab{"vocab_size rounded up to 64",
                    (c.vocab_size + kSglangVocabUnit - 1) / kSglangVocabUnit * kSglangVocabUnit};
  const int64_t all = r.gpus_per_engine;
  const int64_t embed = r.dp_attention_effective() ? attention.value : all;
  const int64_t head = r.dp_lm_head_effective() ? attention.value : all;
  XFER_RETURN_IF_ERROR(
      Divides({"ranks that share the embedding", embed}, vocab, "ranks hold equally many rows"));
  return c.tie_word_embeddings
             ? absl::OkStatus()
             : Divides({"ranks that share lm_head", head}, vocab, "ranks hold equally many rows");
}

absl::Status ValidateRollout(const HfConfig& c, const RolloutParallelism& r) {
  XFER_RETURN_IF_ERROR(ValidateRolloutGrid(r));
  XFER_RETURN_IF_ERROR(ValidateRolloutAttention(c, r));
  const Named all{"rollout.gpus_per_engine", r.gpus_per_engine};
  const Architecture* const arch = FindArchitecture(c.architecture);
  const bool dense_whole = arch != nullptr && arch->dense_tp_setting && r.moe_dense_tp == 1;
  if (!c.layer_is_moe(0) && !dense_whole) {
    XFER_RETURN_IF_ERROR(Divides(all, {"intermediate_size", c.intermediate_size},
                                 "dense MLPs are split over the engine's ranks"));
  }
  const Named ep{"rollout.ep", r.ep};
  if (!c.is_moe()) return InRange(ep, 1, 1);
  XFER_RETURN_IF_ERROR(
      Divides(ep, {"the number of experts", c.num_experts}, "expert ranks hold equally many"));
  XFER_RETURN_IF_ERROR(Divides({"rollout.gpus_per_engine / rollout.ep", r.gpus_per_engine / r.ep},
                               {"moe_intermediate_size", c.moe_intermediate_size},
                               "experts are split over the ranks that share an expert rank"));
  return Divides(
      all,
      {"moe_intermediate_size * n_shared_experts", c.moe_intermediate_size * c.n_shared_experts},
      "shared experts are split over the engine's ranks");
}

// It becomes part of the names of directories and jobs.
absl::Status ValidateName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("a model needs a name");
  if (IsPlainName(name) && name.front() != '.') return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model name \"", absl::CHexEscape(name.substr(0, kMaxPlainName)), "\" must be 1 to ",
      kMaxPlainName, " letters, digits, '.', '_' and '-', without a leading '.'"));
}

absl::Status ValidateCluster(const ModelSpec& spec) {
  XFER_RETURN_IF_ERROR(InRange({"nodes", spec.nodes}, 1, kMaxRanks));
  XFER_RETURN_IF_ERROR(InRange({"gpus_per_node", spec.gpus_per_node}, 1, 1 << 10));
  const int64_t gpus = int64_t{spec.nodes} * spec.gpus_per_node;
  const int64_t ranks = int64_t{spec.train.world} + spec.rollout.world;
  if (ranks > gpus) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.world + rollout.world = ", ranks, " ranks need as many GPUs; nodes = ", spec.nodes,
        " with gpus_per_node = ", spec.gpus_per_node, " have ", gpus));
  }
  if (!(spec.buffer_size_gb > 0) || !(spec.buffer_size_broadcast_gb.value_or(1) > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffer_size_gb = ", spec.buffer_size_gb, " and buffer_size_broadcast_gb = ",
        spec.buffer_size_broadcast_gb.value_or(spec.buffer_size_gb), " must be above 0"));
  }
  return InRange({"transfer_timeout_s", spec.transfer_timeout_s}, 1, 1 << 20);
}

}  // namespace

absl::Status Validate(const ModelSpec& spec) {
  XFER_RETURN_IF_ERROR(ValidateName(spec.name));
  const auto check = [&]() -> absl::Status {
    XFER_RETURN_IF_ERROR(ValidateTrain(spec.config, spec.train));
    XFER_RETURN_IF_ERROR(ValidateRollout(spec.config, spec.rollout));
    return ValidateCluster(spec);
  };
  const absl::Status status = check();
  return status.ok() ? status : Annotate(status, absl::StrCat("model ", spec.name));
}

}  // namespace xfer
