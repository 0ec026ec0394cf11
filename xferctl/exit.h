// How a status becomes an exit code and a line on stderr.
#ifndef XFER_XFERCTL_EXIT_H_
#define XFER_XFERCTL_EXIT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace xfer {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;       // the operation failed
inline constexpr int kExitUsage = 2;        // it was asked for in a way that cannot be meant
inline constexpr int kExitUnreachable = 3;  // no coordinator there, or it was lost

// A status that becomes kExitUsage: a bad flag, argument, environment value or name of a model.
absl::Status UsageError(absl::string_view message);
// The same status as a usage error; OK stays OK.
absl::Status AsUsageError(const absl::Status& status);
// The same code and kind of error, with "context: " before the message; OK stays OK.
absl::Status InContext(const absl::Status& status, absl::string_view context);

int ExitCodeOf(const absl::Status& status);
// The message in one line, without a line break.
std::string OneLine(const absl::Status& status);

}  // namespace xfer

#endif  // XFER_XFERCTL_EXIT_H_
