// The API's messages as JSON for programs that read xferctl's output.
#ifndef XFER_XFERCTL_PROTO_JSON_H_
#define XFER_XFERCTL_PROTO_JSON_H_

#include <string>

#include "google/protobuf/message.h"
#include "nlohmann/json_fwd.hpp"

namespace xfer {

// Fields under their own names, all numbers as numbers, every scalar present; a message that is not
// set is null. Enums are lower case without their prefix ("SYNC_STATE_DONE" -> "done"). A field
// spec_json, which is JSON in itself, becomes the object "spec". Bytes are not supported: the API's
// answers have none.
nlohmann::json ToJson(const google::protobuf::Message& message);

// "SYNC_STATE_DONE" of enum SyncState -> "done".
std::string EnumText(const google::protobuf::EnumDescriptor& type, int number);

}  // namespace xfer

#endif  // XFER_XFERCTL_PROTO_JSON_H_
