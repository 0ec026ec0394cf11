#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/arch/architecture.h"
#include "common/model/json_util.h"
#include "common/model/model.h"

namespace xfer {
namespace {

constexpr absl::string_view kWhat = "config.json";

// Whose field it is. Others do not read it.
enum class Of : uint8_t { kAll, kGqa, kMla, kIndexer, kMoe };

struct Field {
  absl::string_view name;
  int64_t HfConfig::*member;
  int64_t max;
  Of of;
};

// The limits keep every product that a shape is made of far inside int64_t.
constexpr Field kRequired[] = {
    {"num_hidden_layers", &HfConfig::num_hidden_layers, 1 << 10, Of::kAll},
    {"hidden_size", &HfConfig::hidden_size, 1 << 18, Of::kAll},
    {"intermediate_size", &HfConfig::intermediate_size, 1 << 20, Of::kAll},
    {"vocab_size", &HfConfig::vocab_size, 1 << 24, Of::kAll},
    {"num_attention_heads", &HfConfig::num_attention_heads, 1 << 12, Of::kAll},
    {"num_key_value_heads", &HfConfig::num_key_value_heads, 1 << 12, Of::kGqa},
    {"head_dim", &HfConfig::head_dim, 1 << 12, Of::kGqa},
    {"q_lora_rank", &HfConfig::q_lora_rank, 1 << 16, Of::kMla},
    {"kv_lora_rank", &HfConfig::kv_lora_rank, 1 << 16, Of::kMla},
    {"qk_nope_head_dim", &HfConfig::qk_nope_head_dim, 1 << 12, Of::kMla},
    {"qk_rope_head_dim", &HfConfig::qk_rope_head_dim, 1 << 12, Of::kMla},
    {"v_head_dim", &HfConfig::v_head_dim, 1 << 12, Of::kMla},
    {"index_n_heads", &HfConfig::index_n_heads, 1 << 12, Of::kIndexer},
    {"index_head_dim", &HfConfig::index_head_dim, 1 << 12, Of::kIndexer},
    {"moe_intermediate_size", &HfConfig::moe_intermediate_size, 1 << 20, Of::kMoe},
};
constexpr int64_t kMaxExperts = 1 << 13;
constexpr int64_t kMaxExpertsInAll = 1 << 20;
constexpr int64_t kMaxSharedExperts = 1 << 6;
constexpr int64_t kMaxMtpLayers = 1 << 6;

bool Applies(Of of, const Architecture& arch) {
  switch (of) {
    case Of::kAll:
      return true;
    case Of::kGqa:
      return !arch.mla;
    case Of::kMla:
      return arch.mla;
    case Of::kIndexer:
      return arch.indexer;
    case Of::kMoe:
      return !arch.moe_layer.empty();
  }
  return false;
}

absl::StatusOr<const Architecture*> ReadArchitecture(const Json& json, std::string& name) {
  const JsonReader reader(json, kWhat);
  const auto it = json.find("architectures");
  if (it == json.end() || !it->is_array() || it->size() != 1 || !it->front().is_string()) {
    return reader.Bad("architectures",
                      absl::StrCat("a list of one of these names: ", KnownArchitectures()));
  }
  name = it->front().get<std::string>();
  const Architecture* arch = FindArchitecture(name);
  if (arch == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(kWhat, ": unknown architecture \"", name,
                                                   "\"; known are ", KnownArchitectures()));
  }
  return arch;
}

absl::Status ReadDType(const JsonReader& reader, DType& out) {
  // Newer files write `dtype`, older ones `torch_dtype`; some write both.
  const absl::string_view field = reader.Has("dtype") ? "dtype" : "torch_dtype";
  std::string name = "bfloat16";
  XFER_RETURN_IF_ERROR(reader.String(field, /*required=*/false, name));
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (!dtype.ok() || (*dtype != DType::kBF16 && *dtype != DType::kF16 && *dtype != DType::kF32)) {
    return reader.Bad(field, "bfloat16, float16 or float32");
  }
  out = *dtype;
  return absl::OkStatus();
}

absl::Status ReadMoe(const Json& json, const JsonReader& reader, const Architecture& arch,
                     HfConfig& config) {
  const absl::string_view experts = reader.Has("num_experts") ? "num_experts" : "n_routed_experts";
  XFER_RETURN_IF_ERROR(reader.Int(experts, 1, kMaxExperts, true, config.num_experts));
  if (arch.first_k_dense) {
    XFER_RETURN_IF_ERROR(
        reader.Int("first_k_dense_replace", 0, 1 << 10, true, config.first_k_dense_replace));
    XFER_RETURN_IF_ERROR(
        reader.Int("n_shared_experts", 0, kMaxSharedExperts, false, config.n_shared_experts));
  }
  const int64_t in_all =
      config.num_experts *
      std::max<int64_t>(0, config.num_hidden_layers - config.first_k_dense_replace);
  if (in_all > kMaxExpertsInAll) {
    return absl::InvalidArgumentError(absl::StrCat(
        kWhat, ": ", config.num_hidden_layers, " layers with ", config.num_experts,
        " experts each make ", in_all, " experts; at most ", kMaxExpertsInAll, " are accepted"));
  }
  // Dense layers between the others: no published model of these architectures has them.
  for (const absl::string_view step : {"decoder_sparse_step", "moe_layer_freq"}) {
    int64_t value = 1;
    if (!reader.Int(step, 1, 1, false, value).ok()) {
      return reader.Bad(step, "1 (every layer from first_k_dense_replace on has experts)");
    }
  }
  const auto only = json.find("mlp_only_layers");
  if (only != json.end() && !only->is_null() && !only->empty()) {
    return reader.Bad("mlp_only_layers", "empty (dense layers among the others are not supported)");
  }
  return absl::OkStatus();
}

absl::Status ReadAttention(const JsonReader& reader, const Architecture& arch, HfConfig& config) {
  XFER_RETURN_IF_ERROR(reader.Bool("attention_bias", config.attention_bias));
  if (config.attention_bias && !arch.qkv_bias) {
    return reader.Bad("attention_bias", absl::StrCat("false for ", arch.name));
  }
  if (arch.indexer) {
    XFER_RETURN_IF_ERROR(reader.Bool("indexer_rope_interleave", config.indexer_rope_interleave));
    if (config.indexer_rope_interleave && config.index_head_dim % 2 != 0) {
      return reader.Bad("index_head_dim", "even, since indexer_rope_interleave is true");
    }
  }
  switch (arch.qk_norm) {
    case Architecture::QkNorm::kNever:
      break;
    case Architecture::QkNorm::kAlways:
      config.qk_norm = true;
      break;
    case Architecture::QkNorm::kUseQkNormField:
      XFER_RETURN_IF_ERROR(reader.Bool("use_qk_norm", config.qk_norm));
      break;
  }
  if (!arch.mla && config.num_attention_heads % config.num_key_value_heads != 0) {
    return reader.Bad("num_key_value_heads", absl::StrCat("a divisor of num_attention_heads (",
                                                          config.num_attention_heads, ")"));
  }
  return absl::OkStatus();
}

absl::Status ReadQuantization(const JsonReader& reader, HfConfig& config) {
  XFER_ASSIGN_OR_RETURN(const Json* quant, reader.Object("quantization_config", false));
  if (quant == nullptr) return absl::OkStatus();
  const JsonReader q(*quant, "config.json: quantization_config");
  std::string method;
  XFER_RETURN_IF_ERROR(q.String("quant_method", /*required=*/true, method));
  if (method != "fp8") return q.Bad("quant_method", "\"fp8\" (with a weight_block_size)");
  const auto block = quant->find("weight_block_size");
  const bool two = block != quant->end() && block->is_array() && block->size() == 2 &&
                   block->at(0).is_number_unsigned() && block->at(1).is_number_unsigned();
  const auto side = [&](size_t i) { return two ? block->at(i).get<uint64_t>() : 0; };
  if (side(0) < 1 || side(0) > 1 << 16 || side(1) < 1 || side(1) > 1 << 16) {
    return q.Bad("weight_block_size", "two integers from 1 to 65536, like [128, 128]");
  }
  config.fp8_block = {{static_cast<int64_t>(side(0)), static_cast<int64_t>(side(1))}};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json_text) {
  XFER_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(json_text, kWhat));
  HfConfig config;
  config.raw = std::string(json_text);
  XFER_ASSIGN_OR_RETURN(const Architecture* const arch,
                        ReadArchitecture(json, config.architecture));
  const JsonReader reader(json, kWhat);
  XFER_RETURN_IF_ERROR(ReadDType(reader, config.dtype));
  for (const Field& field : kRequired) {
    if (!Applies(field.of, *arch)) continue;
    XFER_RETURN_IF_ERROR(reader.Int(field.name, 1, field.max, true, config.*field.member));
  }
  XFER_RETURN_IF_ERROR(reader.Bool("tie_word_embeddings", config.tie_word_embeddings));
  XFER_RETURN_IF_ERROR(ReadAttention(reader, *arch, config));
  if (Applies(Of::kMoe, *arch)) {
    XFER_RETURN_IF_ERROR(ReadMoe(json, reader, *arch, config));
    XFER_RETURN_IF_ERROR(reader.Int("num_nextn_predict_layers", 0, kMaxMtpLayers, false,
                                    config.num_nextn_predict_layers));
    config.correction_bias = arch->correction_bias;
    config.mtp_stores_embed_and_head =
        config.num_nextn_predict_layers > 0 && arch->mtp_embed_and_head;
  }
  XFER_RETURN_IF_ERROR(ReadQuantization(reader, config));
  return config;
}

absl::StatusOr<HfConfig> KeepLayers(const HfConfig& config, int64_t layers) {
  if (layers < 1 || layers > config.num_hidden_layers) {
    return absl::InvalidArgumentError(absl::StrCat("cannot keep ", layers, " layers of ",
                                                   config.num_hidden_layers, "; it must be 1 to ",
                                                   config.num_hidden_layers));
  }
  XFER_ASSIGN_OR_RETURN(Json json, ParseJsonObject(config.raw, kWhat));
  json["num_hidden_layers"] = layers;
  if (json.contains("num_nextn_predict_layers")) json["num_nextn_predict_layers"] = 0;
  return ParseHfConfig(json.dump(2));
}

}  // namespace xfer
