#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/files.h"
#include "common/checkpoint/safetensors.h"

namespace xfer {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 100'000'000;

// Tensor name -> file name.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  XFER_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(path, " is not JSON"));
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is missing or no object"));
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    // A plain name: the index must not reach out of its directory.
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", tensor, "' has ",
                       file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                       " for a file, which is not the name of a file beside the index"));
    }
    files[tensor] = name;
  }
  return files;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) {
  const std::string single = absl::StrCat(directory, "/", kSingle);
  const std::string index_path = absl::StrCat(directory, "/", kIndex);
  std::map<std::string, std::string> index;
  std::vector<std::string> shards;
  // The order in which Hugging Face's own loader looks.
  if (StatFile(single).ok()) {
    shards.push_back(single);
  } else if (auto found = StatFile(index_path); absl::IsNotFound(found.status())) {
    return absl::NotFoundError(
        absl::StrCat(directory, " has neither ", kSingle, " nor ", kIndex,
                     "; give a Hugging Face directory with safetensors files"));
  } else {
    XFER_ASSIGN_OR_RETURN(index, ReadIndex(index_path));
    for (const auto& [tensor, file] : index) shards.push_back(absl::StrCat(directory, "/", file));
    std::sort(shards.begin(), shards.end());
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  }

  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  absl::flat_hash_map<std::string, const SafetensorsFile*> owner;
  for (const std::string& path : shards) {
    auto file = SafetensorsFile::Open(path);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(
          absl::StrCat("shard ", path, ", which ", index_path, " names, is missing"));
    }
    if (!file.ok()) return file.status();
    for (const auto& [name, view] : (*file)->tensors()) {
      if (const auto [it, fresh] = owner.emplace(name, file->get()); !fresh) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", name, "' stands in both ", it->second->path(), " and ", path));
      }
      checkpoint->tensors_.emplace(name, view);
    }
    checkpoint->files_.push_back(*std::move(file));
  }
  for (const auto& [tensor, file] : index) {
    const std::string path = absl::StrCat(directory, "/", file);
    if (const auto it = owner.find(tensor); it == owner.end() || it->second->path() != path) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor, "' is not in ", path,
                                                     ", where ", index_path, " puts it"));
    }
  }
  return checkpoint;
}

absl::StatusOr<TensorView> Checkpoint::Find(absl::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrCat(files_.empty() ? "an empty checkpoint" : DirectoryOf(files_[0]->path()),
                     " has no tensor '", name, "'"));
  }
  return it->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, view] : tensors_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Checkpoint::paths() const {
  std::vector<std::string> paths;
  for (const auto& file : files_) paths.push_back(file->path());
  return paths;
}

}  // namespace xfer
