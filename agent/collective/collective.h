// The one interface to libraries that broadcast between nodes: gloo for host memory; written so
// that nccl, for GPU memory, is another implementation.
//
// A library moves bytes between the members of a communicator. It knows nothing of buckets, plans
// or syncs.
#ifndef XFER_AGENT_COLLECTIVE_COLLECTIVE_H_
#define XFER_AGENT_COLLECTIVE_COLLECTIVE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace xfer {

// How the members of a communicator that is being made find each other. Used by one thread.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // What the others need to reach this member, in the library's own form. Called once.
  virtual void Publish(std::string address) = 0;
  // What member `rank` has published; waits for it. Errors name the member.
  virtual absl::StatusOr<std::string> AddressOf(int rank, absl::Time deadline) = 0;
};

class Communicator {
 public:
  // Closes the connections.
  virtual ~Communicator() = default;
  // Sends `data` of member `root` to all others' `data`, which must be of the same size. Blocks
  // until this member's part is done: at the root when the bytes have been handed to the network,
  // elsewhere when they are in place and passed on. All members call it in the same order, each
  // from one thread at a time. After an error the communicator is of no more use.
  // DeadlineExceeded, Unavailable (a member has gone), or the status of Abort().
  virtual absl::Status Broadcast(int root, absl::Span<std::byte> data, absl::Time deadline) = 0;
  // Ends a broadcast that is running, and all later ones, with `why`. Thread-safe; returns at once.
  virtual void Abort(const absl::Status& why) = 0;
};

// Thread-safe.
class Collective {
 public:
  virtual ~Collective() = default;
  // Name and version; members with different ones cannot work together.
  virtual std::string library() const = 0;
  // What the bytes go through, for people.
  virtual std::string interface() const = 0;
  // A communicator of `members` (names, for messages; a member's rank is its place), in which this
  // process is number `rank`. Blocks until all are connected, or `deadline`.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Connect(
      const std::vector<std::string>& members, int rank, Rendezvous& rendezvous,
      absl::Time deadline) = 0;
};

// Gloo over TCP, on the interface that has the address `host` (a name or an address, without
// brackets). What goes over it is neither encrypted nor authenticated. Unavailable names a host
// that is not of this machine.
absl::StatusOr<std::unique_ptr<Collective>> MakeGlooCollective(const std::string& host);

}  // namespace xfer

#endif  // XFER_AGENT_COLLECTIVE_COLLECTIVE_H_
