// TCP sockets: addresses, listening, connecting with a deadline. All sockets are non-blocking and
// close-on-exec.
#ifndef XFER_AGENT_TRANSPORT_SOCKET_H_
#define XFER_AGENT_TRANSPORT_SOCKET_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/unique_fd.h"

namespace xfer {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
  // "10.0.0.3:7000" or "[fd00::1]:7000"
  std::string ToString() const;
  uint16_t port() const;
};

// The addresses of "HOST:PORT" or "[IPV6]:PORT", never empty. A name is resolved by the system's
// resolver, which has its own time limit. InvalidArgument for a bad form, Unavailable for a name
// that has no address.
absl::StatusOr<std::vector<SocketAddress>> ResolveAddress(absl::string_view host_port);

// A listening socket. AlreadyExists names the address when it is taken.
absl::StatusOr<UniqueFd> Listen(absl::string_view host_port);
absl::StatusOr<SocketAddress> LocalAddress(int fd);

// Connected, or an error with errno's text; DeadlineExceeded when it took too long.
absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address, absl::Time deadline);

// Waits for poll(2) events. DeadlineExceeded.
absl::Status WaitFor(int fd, short events, absl::Time deadline);
// Writes or reads exactly so many bytes.
absl::Status WriteAll(int fd, absl::string_view bytes, absl::Time deadline);
absl::Status ReadAll(int fd, void* out, size_t bytes, absl::Time deadline);

// Options for a data connection: no delay of small frames, dead hosts are noticed.
void SetDataSocketOptions(int fd);

// "what: errno's text", with the code that fits.
absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_SOCKET_H_
