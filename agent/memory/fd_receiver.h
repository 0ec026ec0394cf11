// Takes file descriptors from processes of this node.
#ifndef XFER_AGENT_MEMORY_FD_RECEIVER_H_
#define XFER_AGENT_MEMORY_FD_RECEIVER_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"

namespace xfer {

inline constexpr size_t kFdTokenBytes = 16;

struct FdReceiverOptions {
  std::string path;                                   // of the side socket
  absl::Duration token_lifetime = absl::Seconds(60);  // that a descriptor waits to be taken
  size_t max_waiting = 1024;                          // descriptors
  size_t max_connections = 256;
  Clock* clock = Clock::Real();  // borrowed
};

// The side socket: a peer whose user is this process's or root connects and sends messages of one
// 16-byte token with one descriptor (SCM_RIGHTS); each is answered by one byte, 0: taken, 1:
// refused. After a refusal the connection is closed. Thread-safe; runs a thread.
class FdReceiver {
 public:
  // Errors as of ListenUnix().
  static absl::StatusOr<std::unique_ptr<FdReceiver>> Start(const FdReceiverOptions& options);
  ~FdReceiver();

  // Hands over what came with `token`. NotFound: nothing did, or it waited too long.
  absl::StatusOr<UniqueFd> Take(absl::string_view token);

  size_t waiting() const;

 private:
  struct Connection {
    UniqueFd socket;
    std::string token;        // as much as has come of it
    std::list<UniqueFd> fds;  // that came with it
    int64_t started_ns = 0;   // when its first byte came
    bool closed = false;
  };
  struct Waiting {
    UniqueFd fd;
    int64_t expires_ns = 0;
  };

  explicit FdReceiver(const FdReceiverOptions& options) : options_(options) {}
  void Run();
  void Accept(std::list<Connection>& connections);
  void Read(Connection& connection);
  absl::Status Receive(Connection& connection, bool& more);
  absl::Status Keep(Connection& connection);
  void Expire();

  const FdReceiverOptions options_;
  UniqueFd listener_;
  UniqueFd stop_;  // eventfd
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace xfer

#endif  // XFER_AGENT_MEMORY_FD_RECEIVER_H_
