// What names and addresses may look like where they enter.
#ifndef XFER_COORDINATOR_REGISTRY_NAMES_H_
#define XFER_COORDINATOR_REGISTRY_NAMES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace xfer {

// InvalidArgument unless `name` is 1 to 64 letters, digits, '.', '_' and '-'. `what` is e.g. "job
// name".
absl::Status CheckName(absl::string_view what, absl::string_view name);

// InvalidArgument unless `address` is HOST:PORT with a port from 1 to 65535.
absl::Status CheckHostPort(absl::string_view what, absl::string_view address);

// `text` cut to at most `bytes` bytes, for messages that come from outside and are kept.
std::string Shorten(absl::string_view text, size_t bytes);

}  // namespace xfer

#endif  // XFER_COORDINATOR_REGISTRY_NAMES_H_
