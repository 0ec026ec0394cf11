#include "common/checkpoint/hf_directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/checkpoint/files.h"
#include "common/checkpoint/parallel.h"

namespace xfer {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kPieceBytes = 8 << 20;

constexpr std::pair<absl::string_view, int64_t HfConfig::*> kNumbers[] = {
    {"num_hidden_layers", &HfConfig::num_hidden_layers},
    {"hidden_size", &HfConfig::hidden_size},
    {"intermediate_size", &HfConfig::intermediate_size},
    {"vocab_size", &HfConfig::vocab_size},
    {"num_attention_heads", &HfConfig::num_attention_heads},
    {"num_key_value_heads", &HfConfig::num_key_value_heads},
    {"head_dim", &HfConfig::head_dim},
    {"q_lora_rank", &HfConfig::q_lora_rank},
    {"kv_lora_rank", &HfConfig::kv_lora_rank},
    {"qk_nope_head_dim", &HfConfig::qk_nope_head_dim},
    {"qk_rope_head_dim", &HfConfig::qk_rope_head_dim},
    {"v_head_dim", &HfConfig::v_head_dim},
    {"index_n_heads", &HfConfig::index_n_heads},
    {"index_head_dim", &HfConfig::index_head_dim},
    {"number of experts", &HfConfig::num_experts},
    {"moe_intermediate_size", &HfConfig::moe_intermediate_size},
    {"n_shared_experts", &HfConfig::n_shared_experts},
    {"first_k_dense_replace", &HfConfig::first_k_dense_replace},
    {"num_nextn_predict_layers", &HfConfig::num_nextn_predict_layers},
};
constexpr std::pair<absl::string_view, bool HfConfig::*> kFlags[] = {
    {"tie_word_embeddings", &HfConfig::tie_word_embeddings},
    {"attention_bias", &HfConfig::attention_bias},
    {"query and key norms", &HfConfig::qk_norm},
    {"indexer_rope_interleave", &HfConfig::indexer_rope_interleave},
    {"router correction bias", &HfConfig::correction_bias},
};

std::string Shape(const Dims& dims) { return absl::StrCat("[", absl::StrJoin(dims, ", "), "]"); }

std::string BlockText(const std::optional<std::array<int64_t, 2>>& block) {
  return block ? absl::StrCat("[", (*block)[0], ", ", (*block)[1], "]") : "none";
}

// The layer that a tensor belongs to; nullopt for those outside the layers.
std::optional<int64_t> LayerOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "model.layers.")) return std::nullopt;
  int64_t layer;
  if (!absl::SimpleAtoi(name.substr(0, name.find('.')), &layer)) return std::nullopt;
  return layer;
}

bool MayBeExtra(absl::string_view name, const HfConfig& found, const ModelSpec& spec, bool cut) {
  if (absl::EndsWith(name, ".rotary_emb.inv_freq") || absl::StartsWith(name, "mtp.")) return true;
  if (name == "lm_head.weight") return found.tie_word_embeddings;
  const std::optional<int64_t> layer = LayerOf(name);
  if (!layer) return false;
  if (cut && *layer >= spec.config.num_hidden_layers) return true;
  return *layer >= found.num_hidden_layers &&
         *layer < found.num_hidden_layers + found.num_nextn_predict_layers;
}

// What one call of `fill` writes.
struct Piece {
  TensorId tensor;
  uint64_t first;  // element
  absl::Span<std::byte> data;
};

absl::Status WriteHfFile(
    const std::string& path, const TensorTable& table, const HfFile& file, int threads,
    absl::FunctionRef<absl::Status(TensorId, uint64_t, absl::Span<std::byte>)> fill) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const TensorId id : file.tensors) {
    entries.push_back({table[id].name, table[id].dtype, table[id].shape});
  }
  // Hugging Face's loader asks for the format.
  XFER_ASSIGN_OR_RETURN(auto writer,
                        SafetensorsWriter::Create(path, std::move(entries), {{"format", "pt"}}));
  std::vector<Piece> pieces;
  for (const TensorId id : file.tensors) {
    XFER_ASSIGN_OR_RETURN(const absl::Span<std::byte> data, writer->Data(table[id].name));
    const auto size = static_cast<uint64_t>(SizeOf(table[id].dtype));
    for (uint64_t at = 0; at < data.size(); at += kPieceBytes) {
      pieces.push_back({id, at / size, data.subspan(at, kPieceBytes)});
    }
  }
  XFER_RETURN_IF_ERROR(ParallelFor(pieces.size(), threads, [&](size_t i) {
    return fill(pieces[i].tensor, pieces[i].first, pieces[i].data);
  }));
  return writer->Finish();
}

}  // namespace

absl::Status CheckSameModel(const std::string& path, const HfConfig& found, const ModelSpec& spec) {
  const HfConfig& wanted = spec.config;
  const auto differs = [&](absl::string_view field, const auto& has, const auto& want) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", field, " is ", has, ", but model '", spec.name, "' has ", want,
                     "; give a checkpoint of this model, or add a model that fits the checkpoint"));
  };
  if (found.architecture != wanted.architecture) {
    return differs("architecture", found.architecture, wanted.architecture);
  }
  if (found.dtype != wanted.dtype) return differs("dtype", Name(found.dtype), Name(wanted.dtype));
  for (const auto& [name, field] : kNumbers) {
    if (found.*field != wanted.*field) return differs(name, found.*field, wanted.*field);
  }
  for (const auto& [name, field] : kFlags) {
    if (found.*field == wanted.*field) continue;
    return differs(name, found.*field ? "true" : "false", wanted.*field ? "true" : "false");
  }
  if (found.fp8_block != wanted.fp8_block) {
    return differs("fp8 block", BlockText(found.fp8_block), BlockText(wanted.fp8_block));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfDirectory(const std::string& directory,
                                                            const ModelSpec& spec,
                                                            const TensorTable& table, bool cut) {
  const std::string path = absl::StrCat(directory, "/config.json");
  XFER_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
  auto parsed = ParseHfConfig(text);
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  const HfConfig found = *std::move(parsed);
  HfConfig compared = found;
  if (cut) {
    auto kept = KeepLayers(found, spec.config.num_hidden_layers);
    if (!kept.ok()) return Annotate(kept.status(), path);
    compared = *std::move(kept);
  }
  XFER_RETURN_IF_ERROR(CheckSameModel(path, compared, spec));

  XFER_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(directory));
  for (const TensorInfo& tensor : table.all()) {
    auto view = checkpoint->Find(tensor.name);
    if (!view.ok()) {
      return Annotate(view.status(), absl::StrCat("no checkpoint of model '", spec.name, "'"));
    }
    if (view->dtype != tensor.dtype || view->shape != tensor.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          directory, ": tensor '", tensor.name, "' is ", Name(view->dtype), " ", Shape(view->shape),
          ", but model '", spec.name, "' has ", Name(tensor.dtype), " ", Shape(tensor.shape)));
    }
  }
  for (const std::string& name : checkpoint->names()) {
    if (table.Find(name) < 0 && !MayBeExtra(name, found, spec, cut)) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory, ": tensor '", name, "' is none of model '", spec.name, "'"));
    }
  }
  return checkpoint;
}

std::vector<HfFile> PlanHfFiles(const TensorTable& table, uint64_t max_file_bytes) {
  std::vector<HfFile> files(1);
  uint64_t bytes = 0;
  for (TensorId id = 0; id < table.size(); ++id) {
    const auto more = static_cast<uint64_t>(table[id].bytes());
    if (!files.back().tensors.empty() && bytes + more > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().tensors.push_back(id);
    bytes += more;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = files.size() == 1
                        ? "model.safetensors"
                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
  }
  return files;
}

absl::Status WriteHfDirectory(
    const std::string& directory, const HfConfig& config, const TensorTable& table,
    const std::vector<HfFile>& files, int threads,
    absl::FunctionRef<absl::Status(TensorId, uint64_t first, absl::Span<std::byte>)> fill) {
  XFER_RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(directory, "/config.json"), config.raw));
  nlohmann::json map = nlohmann::json::object();
  for (const HfFile& file : files) {
    XFER_RETURN_IF_ERROR(
        WriteHfFile(absl::StrCat(directory, "/", file.name), table, file, threads, fill));
    for (const TensorId id : file.tensors) map[table[id].name] = file.name;
  }
  if (files.size() == 1) return absl::OkStatus();
  nlohmann::json index;
  index["metadata"]["total_size"] = table.total_bytes();
  index["weight_map"] = std::move(map);
  return WriteFileDurably(absl::StrCat(directory, "/model.safetensors.index.json"), index.dump(1));
}

}  // namespace xfer
