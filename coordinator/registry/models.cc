#include "coordinator/registry/models.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace xfer {
namespace {

using Json = nlohmann::json;

// Each may have a document of 1 MiB.
constexpr size_t kMaxModels = 256;
constexpr size_t kMaxShown = 80;

v1::Model ToMessage(const ModelSpec& spec) {
  v1::Model model;
  model.set_name(spec.name);
  model.set_spec_json(ToJson(spec));
  return model;
}

std::string Shown(const Json& document, const Json::json_pointer& at) {
  if (!document.contains(at)) return "missing";
  std::string text = document.at(at).dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = absl::StrCat(text.substr(0, kMaxShown), "...");
  return text;
}

// Where two documents differ first, whatever the order of their fields; "" where they do not.
std::string Difference(const std::string& old_json, const std::string& new_json) {
  // Both were written by ToJson().
  const Json before = Json::parse(old_json, nullptr, /*allow_exceptions=*/false);
  const Json after = Json::parse(new_json, nullptr, /*allow_exceptions=*/false);
  const Json changes = Json::diff(before, after);
  if (changes.empty()) return "";
  const std::string path = changes.front().at("path").get<std::string>();
  const Json::json_pointer at(path);
  return absl::StrCat(path.substr(1), " is ", Shown(before, at), " there and ", Shown(after, at),
                      " here");
}

}  // namespace

Models::Models(Store* store) : store_(store) {
  for (const ModelSpec& spec : Presets()) models_[spec.name] = ToMessage(spec);
}

absl::Status Models::Restore() {
  XFER_ASSIGN_OR_RETURN(const std::vector<v1::Model> stored, store_->Models());
  absl::MutexLock lock(&mu_);
  for (const v1::Model& model : stored) {
    const absl::StatusOr<ModelSpec> spec = ParseModelSpec(model.spec_json());
    if (!spec.ok()) {
      return absl::DataLossError(absl::StrCat("the state has a model ", model.name(),
                                              " that cannot be read: ", spec.status().message()));
    }
    models_[spec->name] = ToMessage(*spec);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Model> Models::Add(absl::string_view spec_json, bool replace) {
  XFER_ASSIGN_OR_RETURN(const ModelSpec spec, ParseModelSpec(spec_json));
  v1::Model model = ToMessage(spec);
  absl::MutexLock lock(&mu_);
  const auto old = models_.find(spec.name);
  if (old != models_.end()) {
    const std::string difference = Difference(old->second.spec_json(), model.spec_json());
    if (difference.empty()) return old->second;
    if (!replace) {
      return absl::AlreadyExistsError(absl::StrCat(
          "another model has the name ", spec.name, ": ", difference,
          "; give this one a name of its own, or replace that one (models add --replace)"));
    }
  } else if (models_.size() >= kMaxModels) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", models_.size(), " models already, which is the most"));
  }
  XFER_RETURN_IF_ERROR(store_->SaveModel(model));
  models_[spec.name] = model;
  return model;
}

absl::StatusOr<v1::Model> Models::Get(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto found = models_.find(name);
  if (found != models_.end()) return found->second;
  std::string known;
  for (const auto& [other, model] : models_)
    absl::StrAppend(&known, known.empty() ? "" : ", ", other);
  return absl::NotFoundError(
      absl::StrCat("no model \"", name.substr(0, kMaxShown), "\"; there are ", known));
}

std::vector<v1::Model> Models::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::Model> out;
  out.reserve(models_.size());
  for (const auto& [name, model] : models_) out.push_back(model);
  return out;
}

}  // namespace xfer
