// Logging of the daemons and tools: spdlog, one line an event, to stderr and, where a directory is
// given, to a file for each process.
#ifndef XFER_COMMON_BASE_LOGGING_H_
#define XFER_COMMON_BASE_LOGGING_H_

#include <string>

#include "absl/status/status.h"

namespace xfer {

struct LogOptions {
  std::string process;         // e.g. "agent-node0"; part of the file's name
  std::string directory;       // "": no file; else DIRECTORY/<process>-<pid>.log
  std::string level = "info";  // trace, debug, info, warn, error, off
  bool to_stderr = true;
};

// Sets spdlog's default logger. Call once, early in main. InvalidArgument names a bad level, an
// unusable directory is named with its cause.
absl::Status InitLogging(const LogOptions& options);

}  // namespace xfer

#endif  // XFER_COMMON_BASE_LOGGING_H_
