#include "xferctl/proto_json.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"

namespace xfer {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

// "SyncState" -> "SYNC_STATE_"
std::string EnumPrefix(absl::string_view name) {
  std::string prefix;
  for (size_t i = 0; i < name.size(); ++i) {
    if (i > 0 && absl::ascii_isupper(name[i]) && !absl::ascii_isupper(name[i - 1])) prefix += '_';
    prefix += absl::ascii_toupper(name[i]);
  }
  return prefix + "_";
}

json Single(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(*field.enum_type(), reflection.GetEnumValue(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (!reflection.HasField(message, &field)) return nullptr;
      return ToJson(reflection.GetMessage(message, &field));
  }
  return nullptr;
}

json Element(const Message& message, const FieldDescriptor& field, int i) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetRepeatedInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetRepeatedInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetRepeatedUInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetRepeatedUInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetRepeatedDouble(message, &field, i);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.GetRepeatedFloat(message, &field, i);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetRepeatedBool(message, &field, i);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetRepeatedString(message, &field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(*field.enum_type(), reflection.GetRepeatedEnumValue(message, &field, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(reflection.GetRepeatedMessage(message, &field, i));
  }
  return nullptr;
}

json Map(const Message& message, const FieldDescriptor& field) {
  json out = json::object();
  const int size = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < size; ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, &field, i);
    const json key = Single(entry, *entry.GetDescriptor()->map_key());
    out[key.is_string() ? key.get<std::string>() : key.dump()] =
        Single(entry, *entry.GetDescriptor()->map_value());
  }
  return out;
}

}  // namespace

std::string EnumText(const google::protobuf::EnumDescriptor& type, int number) {
  const google::protobuf::EnumValueDescriptor* value = type.FindValueByNumber(number);
  if (value == nullptr) return absl::StrCat(number);
  absl::string_view name = value->name();
  absl::ConsumePrefix(&name, EnumPrefix(type.name()));
  return absl::AsciiStrToLower(name);
}

nlohmann::json ToJson(const Message& message) {
  json out = json::object();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int f = 0; f < type.field_count(); ++f) {
    const FieldDescriptor& field = *type.field(f);
    if (field.is_map()) {
      out[field.name()] = Map(message, field);
    } else if (field.is_repeated()) {
      json list = json::array();
      const int size = message.GetReflection()->FieldSize(message, &field);
      for (int i = 0; i < size; ++i) list.push_back(Element(message, field, i));
      out[field.name()] = std::move(list);
    } else if (field.name() == "spec_json") {
      const json text = Single(message, field);
      json spec =
          json::parse(text.get_ref<const std::string&>(), nullptr, /*allow_exceptions=*/false);
      out["spec"] = spec.is_discarded() ? json(nullptr) : std::move(spec);
    } else {
      out[field.name()] = Single(message, field);
    }
  }
  return out;
}

}  // namespace xfer
