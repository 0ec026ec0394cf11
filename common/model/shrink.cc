#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>

#include "common/base/status.h"
#include "common/model/json_util.h"
#include "common/model/model.h"
#include "common/model/vocabulary.h"

namespace xfer {
namespace {

// Widths that are small, differ from each other and are no powers of two, so that a mix-up of
// dimensions or an accidental alignment is seen. Head dimensions are even, as rotary embeddings
// need.
constexpr int64_t kHidden = 40;
constexpr int64_t kIntermediate = 72;
constexpr int64_t kMoeIntermediate = 20;
constexpr int64_t kVocab = 640;
constexpr int64_t kHeadDim = 6;
constexpr int64_t kQLoraRank = 28;
constexpr int64_t kKvLoraRank = 14;
constexpr int64_t kQkNopeHeadDim = 6;
constexpr int64_t kQkRopeHeadDim = 4;
constexpr int64_t kVHeadDim = 10;
constexpr int64_t kIndexHeadDim = 12;

constexpr int64_t kSglangVocabUnit = 64;

int64_t Lcm(std::initializer_list<int64_t> numbers) {
  int64_t out = 1;
  for (int64_t n : numbers) out = std::lcm(out, n);
  return out;
}

// The least odd multiple of `unit` that is at least `floor`.
int64_t OddMultiple(int64_t unit, int64_t floor) {
  const int64_t times = (floor + unit - 1) / unit;
  return unit * (times | 1);
}

// A vocabulary that is padded for training exactly where the full one is, and by less than one
// rank's rows.
int64_t ShrinkVocab(const ModelSpec& spec) {
  const TrainParallelism& train = spec.train;
  const int64_t full = spec.config.vocab_size;
  const int64_t rollout_unit = Lcm({kSglangVocabUnit, spec.rollout.gpus_per_engine});
  const int64_t train_unit = int64_t{train.vocab_divisor} * train.tp;
  if (PaddedVocabulary(full, train) == full) {
    const int64_t unit = Lcm({rollout_unit, train_unit});
    return OddMultiple(unit, std::max(kVocab, 2 * unit + 1));  // not once a power of two
  }
  for (int64_t vocab = OddMultiple(rollout_unit, kVocab); vocab < full; vocab += rollout_unit) {
    const int64_t padding = PaddedVocabulary(vocab, train) - vocab;
    if (padding > 0 && padding * train.tp < PaddedVocabulary(vocab, train)) return vocab;
  }
  return full;
}

class Widths {
 public:
  Widths(const HfConfig& config, Json& json) : config_(config), json_(json) {}

  // Sets `field` unless it is as small already or the architecture does not have it.
  void Set(const char* field, int64_t HfConfig::*member, int64_t width) {
    if (config_.*member > width) json_[field] = width;
  }
  // Some configs repeat the sum or a part of the head widths under a name of its own.
  void SetIfPresent(const char* field, int64_t value) {
    if (json_.contains(field) && !json_[field].is_null()) json_[field] = value;
  }
  int64_t Get(const char* field) const { return json_[field].get<int64_t>(); }

 private:
  const HfConfig& config_;
  Json& json_;
};

}  // namespace

absl::StatusOr<ModelSpec> Shrink(const ModelSpec& spec) {
  XFER_RETURN_IF_ERROR(Validate(spec));
  const HfConfig& c = spec.config;
  const TrainParallelism& train = spec.train;
  const RolloutParallelism& rollout = spec.rollout;
  XFER_ASSIGN_OR_RETURN(Json json, ParseJsonObject(c.raw, "config.json"));
  Widths widths(c, json);
  const int64_t engine = rollout.gpus_per_engine;
  // 8 elements keep a row of the hidden size a multiple of 16 bytes, as in every real model.
  widths.Set("hidden_size", &HfConfig::hidden_size, OddMultiple(Lcm({8, train.tp}), kHidden));
  widths.Set("intermediate_size", &HfConfig::intermediate_size,
             OddMultiple(Lcm({2, train.tp, engine}), kIntermediate));
  const int64_t moe_tp = engine / rollout.ep;
  const int64_t shared = c.n_shared_experts > 0 ? Lcm({train.tp, engine}) : 1;
  widths.Set("moe_intermediate_size", &HfConfig::moe_intermediate_size,
             OddMultiple(Lcm({2, train.etp, moe_tp, shared}), kMoeIntermediate));
  widths.Set("vocab_size", &HfConfig::vocab_size, ShrinkVocab(spec));
  widths.Set("index_head_dim", &HfConfig::index_head_dim, kIndexHeadDim);
  if (c.is_mla()) {
    widths.Set("q_lora_rank", &HfConfig::q_lora_rank, kQLoraRank);
    widths.Set("kv_lora_rank", &HfConfig::kv_lora_rank, kKvLoraRank);
    widths.Set("qk_nope_head_dim", &HfConfig::qk_nope_head_dim, kQkNopeHeadDim);
    widths.Set("qk_rope_head_dim", &HfConfig::qk_rope_head_dim, kQkRopeHeadDim);
    widths.Set("v_head_dim", &HfConfig::v_head_dim, kVHeadDim);
    const int64_t rope = widths.Get("qk_rope_head_dim");
    widths.SetIfPresent("qk_head_dim", widths.Get("qk_nope_head_dim") + rope);
    widths.SetIfPresent("head_dim", rope);
  } else {
    widths.Set("head_dim", &HfConfig::head_dim, kHeadDim);
  }
  ModelSpec out = spec;
  XFER_ASSIGN_OR_RETURN(out.config, ParseHfConfig(json.dump(2)));
  XFER_RETURN_IF_ERROR(Validate(out));
  return out;
}

}  // namespace xfer
