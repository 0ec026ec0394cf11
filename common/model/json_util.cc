#include "common/model/json_util.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr size_t kMaxDocumentBytes = size_t{1} << 20;
constexpr int kMaxDepth = 64;
constexpr size_t kMaxShownBytes = 80;

}  // namespace

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, absl::string_view what) {
  if (text.size() > kMaxDocumentBytes) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has ", text.size(), " bytes; at most ",
                                                   kMaxDocumentBytes, " are accepted"));
  }
  bool too_deep = false;
  const auto watch_depth = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  Json json;
  try {  // the only way to learn where the mistake is
    json = Json::parse(text.begin(), text.end(), watch_depth);
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not valid JSON: ", e.what()));
  }
  if (too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is nested deeper than ", kMaxDepth, " levels"));
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " must be a JSON object, not ", json.type_name()));
  }
  return json;
}

const Json* JsonReader::Get(absl::string_view field) const {
  const auto it = object_.find(std::string(field));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonReader::Has(absl::string_view field) const { return Get(field) != nullptr; }

absl::Status JsonReader::Missing(absl::string_view field) const {
  return absl::InvalidArgumentError(absl::StrCat(what_, ": field ", field, " is missing"));
}

absl::Status JsonReader::Bad(absl::string_view field, absl::string_view must_be) const {
  const Json* value = Get(field);
  std::string shown = value == nullptr ? "missing"
                                       : value->dump(-1, ' ', /*ensure_ascii=*/true,
                                                     Json::error_handler_t::replace);
  if (shown.size() > kMaxShownBytes) shown = absl::StrCat(shown.substr(0, kMaxShownBytes), "...");
  return absl::InvalidArgumentError(
      absl::StrCat(what_, ": ", field, " is ", shown, "; it must be ", must_be));
}

absl::Status JsonReader::Int(absl::string_view field, int64_t min, int64_t max, bool required,
                             int64_t& out) const {
  const Json* value = Get(field);
  if (value == nullptr) return required ? Missing(field) : absl::OkStatus();
  const std::string range = absl::StrCat("an integer from ", min, " to ", max);
  if (!value->is_number_integer()) return Bad(field, range);
  // An unsigned number beyond int64_t would come out negative.
  if (value->is_number_unsigned() &&
      value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Bad(field, range);
  }
  const int64_t number = value->get<int64_t>();
  if (number < min || number > max) return Bad(field, range);
  out = number;
  return absl::OkStatus();
}

absl::Status JsonReader::Int32(absl::string_view field, int32_t min, int32_t max, bool required,
                               int32_t& out) const {
  int64_t wide = out;
  XFER_RETURN_IF_ERROR(Int(field, min, max, required, wide));
  out = static_cast<int32_t>(wide);
  return absl::OkStatus();
}

absl::Status JsonReader::Bool(absl::string_view field, bool& out) const {
  const Json* value = Get(field);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return Bad(field, "true or false");
  out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status JsonReader::PositiveNumber(absl::string_view field, double max, bool required,
                                        double& out) const {
  const Json* value = Get(field);
  if (value == nullptr) return required ? Missing(field) : absl::OkStatus();
  const double number = value->is_number() ? value->get<double>() : 0;
  if (!std::isfinite(number) || number <= 0 || number > max) {
    return Bad(field, absl::StrCat("a number above 0 and up to ", max));
  }
  out = number;
  return absl::OkStatus();
}

absl::Status JsonReader::String(absl::string_view field, bool required, std::string& out) const {
  const Json* value = Get(field);
  if (value == nullptr) return required ? Missing(field) : absl::OkStatus();
  if (!value->is_string()) return Bad(field, "a string");
  out = value->get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<const Json*> JsonReader::Object(absl::string_view field, bool required) const {
  const Json* value = Get(field);
  if (value == nullptr) {
    if (required) return Missing(field);
    return value;
  }
  if (!value->is_object()) return Bad(field, "an object");
  return value;
}

absl::Status JsonReader::OnlyFields(absl::Span<const absl::string_view> known) const {
  for (const auto& item : object_.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(what_, ": unknown field \"", item.key(),
                                                     "\"; known are ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

}  // namespace xfer
