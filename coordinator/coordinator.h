// The coordinator of a cluster: registry, membership, plans and syncs behind one gRPC server.
#ifndef XFER_COORDINATOR_COORDINATOR_H_
#define XFER_COORDINATOR_COORDINATOR_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace xfer {

// Thread-safe.
class Coordinator {
 public:
  struct Options {
    std::string listen = "127.0.0.1:7300";        // HOST:PORT; port 0: any free one
    bool insecure = false;                        // needed where HOST is not a loopback address
    Clock* clock = Clock::Real();                 // for leases, deadlines and timings; borrowed
    absl::Duration lease = absl::Seconds(5);      // a node that is silent for longer is lost
    absl::Duration heartbeat = absl::Seconds(1);  // how often agents are asked to send one
    // File for what must outlive the process (see store/store.h); empty: memory, nothing does.
    std::string state;
  };

  // InvalidArgument: options that make no sense. AlreadyExists: the port is taken.
  // FailedPrecondition: an address that needs `insecure`. Or what Store::Open() says of `state`.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(const Options& options);
  // Shutdown with no grace, where that has not been called.
  ~Coordinator();

  // The port that it listens on.
  int port() const;

  // Cancels running syncs, gives their engines `grace` to resume, ends the agents' sessions and the
  // server. Returns when all is over; calling it again does nothing.
  void Shutdown(absl::Duration grace);

 private:
  class Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_COORDINATOR_H_
