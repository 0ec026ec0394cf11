// Sends file descriptors to the agent over its side socket.
#ifndef XFER_CLIENT_FD_SENDER_H_
#define XFER_CLIENT_FD_SENDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/unique_fd.h"

namespace xfer {

// One connection to an agent's side socket. Tokens stay good at least as long as it is open; a
// registration should be over before it is closed. Not thread-safe.
class FdSender {
 public:
  // `socket` is the agent's main socket; ".fd" is added here. Unavailable names the path.
  static absl::StatusOr<FdSender> Connect(const std::string& socket);

  // Sends `fd`, which stays the caller's, under a fresh random token of 16 bytes, and returns the
  // token once the agent has it. Unavailable, DeadlineExceeded, PermissionDenied (the agent
  // refused) name the path.
  absl::StatusOr<std::string> Send(int fd, absl::Time deadline);

 private:
  FdSender(std::string path, UniqueFd connection)
      : path_(std::move(path)), connection_(std::move(connection)) {}
  std::string path_;
  UniqueFd connection_;
};

}  // namespace xfer

#endif  // XFER_CLIENT_FD_SENDER_H_
