#include "common/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace xfer {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
// Header, tensor, list of numbers.
constexpr int kMaxDepth = 3;

// A value from outside, fit for one line of a message.
std::string ShowJson(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = absl::StrCat(text.substr(0, 80), "...");
  return text;
}

std::string Show(absl::string_view name) {
  std::string text = absl::Utf8SafeCEscape(name.substr(0, 200));
  return name.size() > 200 ? absl::StrCat(text, "...") : text;
}

// Sees what a parsed value no longer shows: a key that stands twice in one object (the last would
// win), and nesting that no header has. (nlohmann's parse with a callback would see it too, but
// takes time that grows with the square of the number of tensors.)
class StrictnessCheck final : public nlohmann::json_sax<Json> {
 public:
  const std::string& doubled() const { return doubled_; }  // the first such key; empty: none
  bool too_deep() const { return depth_ > kMaxDepth; }
  const std::string& error() const { return error_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    if (!Enter()) return false;
    keys_[depth_].clear();
    return true;
  }
  bool key(string_t& key) override {
    if (!keys_[depth_].insert(key).second && doubled_.empty()) doubled_ = Show(key);
    return true;
  }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = e.what();
    return false;
  }

 private:
  bool Enter() { return ++depth_ <= kMaxDepth; }
  bool Leave() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  absl::flat_hash_set<std::string> keys_[kMaxDepth + 1];  // of the object open at each depth
  std::string doubled_;
  std::string error_;
};

absl::StatusOr<Json> ParseStrictly(absl::string_view path, absl::string_view text) {
  StrictnessCheck check;
  if (!Json::sax_parse(text.begin(), text.end(), &check) && check.too_deep()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header is nested deeper than ", kMaxDepth, " levels"));
  }
  if (!check.error().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header is not JSON: ", Show(check.error())));
  }
  if (!check.doubled().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header has '", check.doubled(), "' twice"));
  }
  // Without exceptions: what was accepted above is accepted again.
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header is not a JSON object"));
  }
  return json;
}

absl::StatusOr<Dims> ParseShape(const Json& tensor) {
  const auto it = tensor.find("shape");
  if (it == tensor.end() || !it->is_array()) {
    return absl::InvalidArgumentError("shape is missing or not a list");
  }
  if (it->size() > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape has ", it->size(), " dimensions; at most ", kMaxDims, " are read"));
  }
  Dims shape;
  for (const Json& extent : *it) {
    if (!extent.is_number_unsigned() ||
        extent.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shape has ", ShowJson(extent), ", which is no whole number of 0 .. 2^63 - 1"));
    }
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

absl::Status ParseOffsets(const Json& tensor, uint64_t data_bytes, SafetensorsEntry& entry) {
  const auto it = tensor.find("data_offsets");
  if (it == tensor.end() || !it->is_array() || it->size() != 2) {
    return absl::InvalidArgumentError("data_offsets is missing or not a list of two numbers");
  }
  for (const Json& offset : *it) {
    if (!offset.is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data_offsets has ", ShowJson(offset), ", which is no whole number of 0 .. 2^64 - 1"));
    }
  }
  entry.begin = (*it)[0].get<uint64_t>();
  entry.end = (*it)[1].get<uint64_t>();
  if (entry.begin > entry.end) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] are out of order"));
  }
  if (entry.end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets [", entry.begin, ", ", entry.end,
                                                   "] lie outside the file's ", data_bytes,
                                                   " bytes of data; is the file truncated?"));
  }
  return absl::OkStatus();
}

absl::Status ParseEntry(const Json& tensor, uint64_t data_bytes, SafetensorsEntry& entry) {
  if (!tensor.is_object()) return absl::InvalidArgumentError("entry is not a JSON object");
  const auto dtype = tensor.find("dtype");
  if (dtype == tensor.end() || !dtype->is_string()) {
    return absl::InvalidArgumentError("dtype is missing or not a string");
  }
  const auto& spelling = dtype->get_ref<const std::string&>();
  XFER_ASSIGN_OR_RETURN(entry.dtype, ParseDType(spelling));
  // ParseDType() takes torch's spellings too; a header has only the format's own.
  if (Name(entry.dtype) != spelling) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype '", Show(spelling), "' must be written ", Name(entry.dtype)));
  }
  XFER_ASSIGN_OR_RETURN(entry.shape, ParseShape(tensor));
  XFER_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(entry.dtype, entry.shape));
  XFER_RETURN_IF_ERROR(ParseOffsets(tensor, data_bytes, entry));
  if (entry.end - entry.begin != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets [", entry.begin, ", ", entry.end, "] span ",
                     entry.end - entry.begin, " bytes, but ", Name(entry.dtype), " [",
                     absl::StrJoin(entry.shape, ", "), "] has ", bytes));
  }
  return absl::OkStatus();
}

absl::Status ParseMetadata(absl::string_view path, const Json& value, SafetensorsHeader& header) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", kMetadata, " is not a JSON object"));
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", kMetadata, " '", Show(key),
                                                     "' is ", ShowJson(text),
                                                     ", which is not a string"));
    }
    header.metadata[key] = text.get<std::string>();
  }
  return absl::OkStatus();
}

// The format allows no byte that belongs to no tensor or to two.
absl::Status CheckTiling(absl::string_view path, const std::vector<SafetensorsEntry>& entries,
                         uint64_t data_bytes) {
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != at) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor '", Show(entry.name), "': data begins at ", entry.begin, ", which ",
          entry.begin < at ? "overlaps the tensor before it, that ends at "
                           : "leaves a gap behind the tensor before it, that ends at ",
          at));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the tensors end at ", at, " of ",
                                                   data_bytes,
                                                   " bytes of data; the rest belongs to none"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> TensorBytes(DType dtype, const Dims& shape) {
  const std::string text = absl::StrCat(Name(dtype), " [", absl::StrJoin(shape, ", "), "]");
  if (shape.size() > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, " has more than ", kMaxDims, " dimensions"));
  }
  // Extents of 0 are left out of the product at first, so that it is known to fit in whatever order
  // somebody multiplies them later.
  int64_t bytes = SizeOf(dtype);
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat(text, " has a negative extent"));
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(text, " has more bytes than 63 bits can count"));
    }
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view path,
                                                         absl::string_view text,
                                                         uint64_t data_bytes) {
  if (text.empty() || text[0] != '{') {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header does not begin with '{'; is it a safetensors file?"));
  }
  XFER_ASSIGN_OR_RETURN(const Json json, ParseStrictly(path, text));
  SafetensorsHeader header;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) {
      XFER_RETURN_IF_ERROR(ParseMetadata(path, value, header));
      continue;
    }
    SafetensorsEntry entry;
    entry.name = name;
    XFER_RETURN_IF_ERROR(Annotate(ParseEntry(value, data_bytes, entry),
                                  absl::StrCat(path, ": tensor '", Show(name), "'")));
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  XFER_RETURN_IF_ERROR(CheckTiling(path, header.entries, data_bytes));
  return header;
}

absl::StatusOr<std::string> FormatSafetensorsHeader(absl::string_view path,
                                                    const SafetensorsHeader& header) {
  Json json = Json::object();
  if (!header.metadata.empty()) json[kMetadata] = header.metadata;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.name == kMetadata) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": no tensor can be named ", kMetadata, " in a safetensors file"));
    }
    Json& tensor = json[entry.name];
    if (!tensor.is_null()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", Show(entry.name), "' is given twice"));
    }
    tensor["dtype"] = absl::StrCat(Name(entry.dtype));
    tensor["shape"] = std::vector<int64_t>(entry.shape.begin(), entry.shape.end());
    tensor["data_offsets"] = {entry.begin, entry.end};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a name is not UTF-8: ", Show(e.what())));
  }
  constexpr uint64_t kAlignment = 64;
  const uint64_t end = kSafetensorsLengthBytes + text.size();
  text.append((kAlignment - end % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header has ", text.size(),
                                                   " bytes; readers take at most ",
                                                   kMaxSafetensorsHeaderBytes));
  }
  std::string out(kSafetensorsLengthBytes, '\0');
  for (uint64_t i = 0; i < kSafetensorsLengthBytes; ++i) {
    out[i] = static_cast<char>(text.size() >> (8 * i));
  }
  return out + text;
}

}  // namespace xfer
