#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/model/json_util.h"
#include "common/model/model.h"

namespace xfer {
namespace {

constexpr absl::string_view kSpecFields[] = {
    "name",
    "hf_repo",
    "config",
    "train",
    "notes",
    "rollout",
    "nodes",
    "gpus_per_node",
    "buffer_size_gb",
    "buffer_size_broadcast_gb",
    "transfer_timeout_s",
    "published",
    "derived",  // what `xferctl models show` adds; it follows from the rest and is not read
};

// One row a field, for both directions.
struct TrainField {
  absl::string_view name;
  int32_t TrainParallelism::*member;
  int32_t min;
};
constexpr TrainField kTrain[] = {
    {"world", &TrainParallelism::world, 1},
    {"tp", &TrainParallelism::tp, 1},
    {"pp", &TrainParallelism::pp, 1},
    {"cp", &TrainParallelism::cp, 1},
    {"ep", &TrainParallelism::ep, 1},
    {"etp", &TrainParallelism::etp, 1},
    {"vocab_divisor", &TrainParallelism::vocab_divisor, 1},
    {"mtp_layers", &TrainParallelism::mtp_layers, 0},
};
constexpr absl::string_view kLastStage = "last_stage_layers";

struct RolloutField {
  absl::string_view name;
  int32_t RolloutParallelism::*member;
  int32_t min;
};
constexpr RolloutField kRollout[] = {
    {"world", &RolloutParallelism::world, 1},
    {"gpus_per_engine", &RolloutParallelism::gpus_per_engine, 1},
    {"ep", &RolloutParallelism::ep, 1},
    {"dp", &RolloutParallelism::dp, 1},
    {"moe_dense_tp", &RolloutParallelism::moe_dense_tp, 0},
};
struct RolloutFlag {
  absl::string_view name;
  bool RolloutParallelism::*member;
};
constexpr RolloutFlag kRolloutFlags[] = {
    {"dp_attention", &RolloutParallelism::dp_attention},
    {"dp_lm_head", &RolloutParallelism::dp_lm_head},
};

// What the frameworks can do and xfer cannot: named, so that a profile that needs it is refused for
// the right reason.
struct Unsupported {
  absl::string_view name;
  int32_t only;  // the one value that means "not used"
  absl::string_view what;
};
constexpr Unsupported kUnsupportedTrain[] = {
    {"virtual_pp", 1, "an interleaved virtual pipeline is not supported"},
};
constexpr Unsupported kUnsupportedRollout[] = {
    {"pp", 1, "pipeline parallelism in the rollout is not supported"},
    {"redundant_experts", 0, "redundant experts are not supported"},
};

constexpr int32_t kMax = 1 << 20;
constexpr double kMaxBufferGb = 1024;
constexpr double kMaxPublishedMs = 1e9;

absl::Status Refuse(const JsonReader& reader, absl::Span<const Unsupported> features,
                    std::vector<absl::string_view>& known) {
  for (const Unsupported& feature : features) {
    known.push_back(feature.name);
    int32_t value = feature.only;
    if (!reader.Int32(feature.name, feature.only, feature.only, false, value).ok()) {
      return reader.Bad(feature.name, absl::StrCat(feature.only, ": ", feature.what));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTrain(const Json& json, TrainParallelism& train) {
  const JsonReader reader(json, "train");
  std::vector<absl::string_view> known = {kLastStage};
  for (const TrainField& field : kTrain) {
    known.push_back(field.name);
    XFER_RETURN_IF_ERROR(reader.Int32(field.name, field.min, kMax, false, train.*field.member));
  }
  if (reader.Has(kLastStage)) {
    XFER_RETURN_IF_ERROR(
        reader.Int32(kLastStage, 1, kMax, true, train.last_stage_layers.emplace(0)));
  }
  XFER_RETURN_IF_ERROR(Refuse(reader, kUnsupportedTrain, known));
  return reader.OnlyFields(known);
}

absl::Status ReadRollout(const Json& json, RolloutParallelism& rollout) {
  const JsonReader reader(json, "rollout");
  std::vector<absl::string_view> known;
  for (const RolloutField& field : kRollout) {
    known.push_back(field.name);
    XFER_RETURN_IF_ERROR(reader.Int32(field.name, field.min, kMax, false, rollout.*field.member));
  }
  for (const RolloutFlag& flag : kRolloutFlags) {
    known.push_back(flag.name);
    XFER_RETURN_IF_ERROR(reader.Bool(flag.name, rollout.*flag.member));
  }
  XFER_RETURN_IF_ERROR(Refuse(reader, kUnsupportedRollout, known));
  return reader.OnlyFields(known);
}

absl::Status ReadCluster(const JsonReader& reader, ModelSpec& spec) {
  XFER_RETURN_IF_ERROR(reader.Int32("nodes", 1, kMax, false, spec.nodes));
  XFER_RETURN_IF_ERROR(reader.Int32("gpus_per_node", 1, kMax, false, spec.gpus_per_node));
  XFER_RETURN_IF_ERROR(reader.Int32("transfer_timeout_s", 1, kMax, false, spec.transfer_timeout_s));
  XFER_RETURN_IF_ERROR(
      reader.PositiveNumber("buffer_size_gb", kMaxBufferGb, false, spec.buffer_size_gb));
  if (reader.Has("buffer_size_broadcast_gb")) {
    XFER_RETURN_IF_ERROR(reader.PositiveNumber("buffer_size_broadcast_gb", kMaxBufferGb, true,
                                               spec.buffer_size_broadcast_gb.emplace(0)));
  }
  XFER_ASSIGN_OR_RETURN(const Json* published, reader.Object("published", false));
  if (published == nullptr) return absl::OkStatus();
  const JsonReader times(*published, "published");
  PublishedTimes& out = spec.published.emplace();
  XFER_RETURN_IF_ERROR(times.OnlyFields({"nccl_ms", "rdma_ms"}));
  XFER_RETURN_IF_ERROR(times.PositiveNumber("nccl_ms", kMaxPublishedMs, true, out.nccl_ms));
  return times.PositiveNumber("rdma_ms", kMaxPublishedMs, true, out.rdma_ms);
}

absl::StatusOr<ModelSpec> ReadSpec(const Json& json) {
  const JsonReader reader(json, "model file");
  ModelSpec spec;
  XFER_RETURN_IF_ERROR(reader.OnlyFields(kSpecFields));
  XFER_RETURN_IF_ERROR(reader.String("name", true, spec.name));
  XFER_RETURN_IF_ERROR(reader.String("hf_repo", false, spec.hf_repo));
  XFER_ASSIGN_OR_RETURN(const Json* config, reader.Object("config", true));
  XFER_ASSIGN_OR_RETURN(spec.config, ParseHfConfig(config->dump(2)));
  XFER_ASSIGN_OR_RETURN(const Json* train, reader.Object("train", true));
  XFER_RETURN_IF_ERROR(ReadTrain(*train, spec.train));
  XFER_ASSIGN_OR_RETURN(const Json* rollout, reader.Object("rollout", true));
  XFER_RETURN_IF_ERROR(ReadRollout(*rollout, spec.rollout));
  XFER_RETURN_IF_ERROR(ReadCluster(reader, spec));
  XFER_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view json_text) {
  XFER_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(json_text, "model file"));
  return ReadSpec(json);
}

std::string ToJson(const ModelSpec& spec) {
  Json out;
  out["name"] = spec.name;
  out["hf_repo"] = spec.hf_repo;
  out["config"] = Json::parse(spec.config.raw, nullptr, /*allow_exceptions=*/false);
  for (const TrainField& field : kTrain) {
    out["train"][std::string(field.name)] = spec.train.*field.member;
  }
  if (spec.train.last_stage_layers.has_value()) {
    out["train"][std::string(kLastStage)] = *spec.train.last_stage_layers;
  }
  for (const RolloutField& field : kRollout) {
    out["rollout"][std::string(field.name)] = spec.rollout.*field.member;
  }
  for (const RolloutFlag& flag : kRolloutFlags) {
    out["rollout"][std::string(flag.name)] = spec.rollout.*flag.member;
  }
  out["nodes"] = spec.nodes;
  out["gpus_per_node"] = spec.gpus_per_node;
  out["buffer_size_gb"] = spec.buffer_size_gb;
  if (spec.buffer_size_broadcast_gb.has_value()) {
    out["buffer_size_broadcast_gb"] = *spec.buffer_size_broadcast_gb;
  }
  out["transfer_timeout_s"] = spec.transfer_timeout_s;
  if (spec.published.has_value()) {
    out["published"] = {{"nccl_ms", spec.published->nccl_ms}, {"rdma_ms", spec.published->rdma_ms}};
  }
  return out.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace xfer
