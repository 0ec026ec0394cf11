// Listening Unix sockets of the agent.
#ifndef XFER_AGENT_MEMORY_UNIX_SOCKET_H_
#define XFER_AGENT_MEMORY_UNIX_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace xfer {

// Makes `path` free to listen on: the socket file of an agent that no longer runs is removed, a
// missing parent directory is made (0755). AlreadyExists: a living process listens there, or the
// file is no socket. InvalidArgument: the path is too long for a Unix socket. FailedPrecondition:
// the directory cannot be made or written to. All name the path.
absl::Status PrepareUnixSocket(const std::string& path);

// Prepares `path` and listens on it (stream, non-blocking, mode 0660).
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path);

}  // namespace xfer

#endif  // XFER_AGENT_MEMORY_UNIX_SOCKET_H_
