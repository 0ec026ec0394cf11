#include "common/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
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

// Reads a header in one pass and hands on its members one by one: a tree of a hundred thousand
// tensors would take longer to make and to free than all the rest. Sees also what such a tree no
// longer shows: a key that stands twice in one object (the last would win), and nesting that no
// header has.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  using OnMember = absl::FunctionRef<absl::Status(const std::string& name, const Json& value)>;
  explicit HeaderReader(OnMember on_member) : on_member_(on_member) {}

  // What is wrong with the document comes before what is wrong with a member.
  absl::Status Read(absl::string_view path, absl::string_view text) {
    if (!Json::sax_parse(text.begin(), text.end(), this) && depth_ > kMaxDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": header is nested deeper than ", kMaxDepth, " levels"));
    }
    if (!error_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": header is not JSON: ", Show(error_)));
    }
    if (!doubled_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": header has '", doubled_, "' twice"));
    }
    return member_error_;
  }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON as text has none
  bool start_object(size_t) override { return Enter(Json::value_t::object); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(Json::value_t::array); }
  bool end_array() override { return Leave(); }
  bool key(string_t& key) override {
    const bool is_new = open_.empty() ? names_.insert(key).second : !open_.back()->contains(key);
    if (!is_new && doubled_.empty()) doubled_ = Show(key);
    (open_.empty() ? name_ : key_) = std::move(key);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = e.what();
    return false;
  }

 private:
  // Puts a value where it stands in the present member.
  Json& Put(Json value) {
    if (open_.empty()) return member_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_object()) return parent[key_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }
  bool Add(Json value) {
    Put(std::move(value));
    if (open_.empty()) EndMember();
    return true;
  }
  bool Enter(Json::value_t type) {
    if (++depth_ > kMaxDepth) return false;
    if (depth_ > 1) open_.push_back(&Put(Json(type)));
    return true;
  }
  bool Leave() {
    --depth_;
    if (open_.empty()) return true;  // the header itself
    open_.pop_back();
    if (open_.empty()) EndMember();
    return true;
  }
  void EndMember() {
    if (member_error_.ok()) member_error_ = on_member_(name_, member_);
  }

  const OnMember on_member_;
  int depth_ = 0;
  absl::flat_hash_set<std::string> names_;
  std::string name_;  // of the present member
  Json member_;
  std::vector<Json*> open_;  // objects and lists inside it that are not ended; the innermost last
  std::string key_;          // in the innermost object
  std::string doubled_;      // the first key that stands twice; empty: none
  std::string error_;
  absl::Status member_error_;
};

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
  SafetensorsHeader header;
  const auto add = [&](const std::string& name, const Json& value) -> absl::Status {
    if (name == kMetadata) return ParseMetadata(path, value, header);
    SafetensorsEntry& entry = header.entries.emplace_back();
    entry.name = name;
    return Annotate(ParseEntry(value, data_bytes, entry),
                    absl::StrCat(path, ": tensor '", Show(name), "'"));
  };
  HeaderReader reader(add);
  XFER_RETURN_IF_ERROR(reader.Read(path, text));
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
