// JSON from outside: parsed with limits, read with messages that name the field.
#ifndef XFER_COMMON_MODEL_JSON_UTIL_H_
#define XFER_COMMON_MODEL_JSON_UTIL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace xfer {

// Keeps the order of the fields, so that a document that is written back reads like the original.
using Json = nlohmann::ordered_json;

// InvalidArgument, with `what` for the document's name, where `text` is no JSON object, is larger
// than 1 MiB, or is nested deeper than 64 levels (what comes later recurses).
absl::StatusOr<Json> ParseJsonObject(absl::string_view text, absl::string_view what);

// Reads fields of one object. A missing field or null leaves `out` as it is, unless `required` is
// set. InvalidArgument names the document, the field, its value and what is accepted.
class JsonReader {
 public:
  // `what` names the object in messages; `object` and `what` must outlive the reader.
  JsonReader(const Json& object, absl::string_view what) : object_(object), what_(what) {}

  bool Has(absl::string_view field) const;
  // An integer in [min, max].
  absl::Status Int(absl::string_view field, int64_t min, int64_t max, bool required,
                   int64_t& out) const;
  absl::Status Int32(absl::string_view field, int32_t min, int32_t max, bool required,
                     int32_t& out) const;
  absl::Status Bool(absl::string_view field, bool& out) const;
  // A finite number in (0, max].
  absl::Status PositiveNumber(absl::string_view field, double max, bool required,
                              double& out) const;
  absl::Status String(absl::string_view field, bool required, std::string& out) const;
  // nullptr where there is none.
  absl::StatusOr<const Json*> Object(absl::string_view field, bool required) const;
  // Refuses a field that is not in `known`.
  absl::Status OnlyFields(absl::Span<const absl::string_view> known) const;

  // InvalidArgument: "what: field is <value>; it must be <must_be>".
  absl::Status Bad(absl::string_view field, absl::string_view must_be) const;

 private:
  const Json* Get(absl::string_view field) const;
  absl::Status Missing(absl::string_view field) const;

  const Json& object_;
  absl::string_view what_;
};

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_JSON_UTIL_H_
