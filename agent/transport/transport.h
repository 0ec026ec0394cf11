// The one interface that moves bytes between two agents (or within one). A folder a transport; one
// conformance suite over all of them (tests/unit/agent/transport).
//
// A transport moves *ranges of transfer streams* (plan.h). It knows nothing of models, syncs'
// phases or the coordinator. The sending agent pushes: it opens an Endpoint to a peer and posts
// ranges; the receiving agent's side of the transport finds the memory through its ReceiveTable and
// tells it what has arrived.
#ifndef XFER_AGENT_TRANSPORT_TRANSPORT_H_
#define XFER_AGENT_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/plan/plan.h"

namespace xfer {

// One sync as transports see it. `secret` is random, made by the coordinator for this sync, sent to
// its agents only, and required on every data connection's messages for it.
struct SyncKey {
  uint64_t sync_id = 0;
  uint64_t secret = 0;
  friend bool operator==(const SyncKey&, const SyncKey&) = default;
};

// Mapped memory of a rank.
struct Memory {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};

// The receiving side of the syncs that are running on this agent. Implemented by the executor
// (agent/exec); called by transports from their own threads, concurrently. Thread-safe.
class ReceiveTable {
 public:
  // Where the bytes of a transfer go. The reference stays valid until the matching Leave().
  struct Target {
    const Transfer* transfer = nullptr;
    Memory memory;  // destination region; transfer was checked against it
  };

  virtual ~ReceiveTable() = default;

  // Called before anything is written; pins the destination memory until Leave(). NotFound: no such
  // sync, transfer, or a wrong secret (the same answer for all three); FailedPrecondition: the
  // transfer's rank has gone, or the sync was ended.
  virtual absl::StatusOr<Target> Enter(const SyncKey& sync, TransferId transfer) = 0;
  virtual void Leave(const SyncKey& sync, TransferId transfer) = 0;

  // Stream bytes [begin, end) are in place and visible to this process's loads. Each byte is
  // reported at most once. Called between Enter and Leave by transports that see arrival range by
  // range; a transport that does not see it (RDMA writes) calls it once for the whole stream before
  // Finished(). The table takes the digest of the range here, while it is in the cache.
  virtual void Arrived(const SyncKey& sync, TransferId transfer, uint64_t begin, uint64_t end) = 0;

  // The sender says that it sent everything and that its digest is `digest`. OK means that the
  // receiver has every byte in place and, where the sync verifies, the same digest: the transfer is
  // done. DataLoss: bytes are missing or differ.
  virtual absl::Status Finished(const SyncKey& sync, TransferId transfer, uint64_t digest) = 0;
};

// Something to send.
struct SendRange {
  SyncKey sync;
  const Transfer* transfer = nullptr;  // valid until completed
  Memory source;                       // source region; valid until completed
  uint64_t begin = 0;                  // of the stream; a multiple of kDigestLeafBytes
  uint64_t end = 0;                    // likewise, or the stream's end
  // The source is a buffer of the sender's own, of which only [begin, end) is there: it was never
  // registered, and a transport that needs that does it for this range.
  bool unregistered = false;
};

// What became of a posted range or finish.
struct Completion {
  TransferId transfer = 0;
  bool finish = false;  // of PostFinish(), else of PostRange()
  uint64_t begin = 0, end = 0;
  // PostRange: OK says that the source bytes may change again (and nothing about the destination).
  // PostFinish: what ReceiveTable::Finished() said on the other side.
  absl::Status status;
  // PostFinish over a transport with several ways: the stream's bytes by the way that they went,
  // e.g. {"mlx5_0:1", 1048576}.
  std::vector<std::pair<std::string, uint64_t>> by_rail;
};

// A way to one peer agent. Used by one thread at a time. Destroying it abandons what is in flight;
// the source memory is no longer read once the destructor has returned.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // Queues a range. Unavailable: the queue is full, Poll() first. Any other error is final for the
  // endpoint and names the peer. Ranges of one transfer may be posted in any order and may arrive
  // in any order.
  virtual absl::Status PostRange(const SendRange& range) = 0;

  // Queues the end of a transfer all of whose ranges have been posted before. It takes effect at
  // the receiver after all of them. `digest` is over the whole stream.
  virtual absl::Status PostFinish(const SyncKey& sync, const Transfer& transfer,
                                  uint64_t digest) = 0;

  // Appends finished work to `out`; waits until there is some or `timeout` has passed (zero: does
  // not wait). An error is final for the endpoint: everything not yet completed has failed.
  virtual absl::Status Poll(absl::Duration timeout, std::vector<Completion>& out) = 0;
};

// How to reach an agent.
struct PeerAddress {
  std::string node;          // node name, for messages
  uint64_t incarnation = 0;  // of the agent process; a connection to another incarnation is refused
  std::string data_address;  // HOST:PORT of its TCP data port; "": it has none
  std::string rpc_address;   // HOST:PORT of its gRPC service for peers
};

// One kind of transport in one agent. Thread-safe. The receiving side, where there is one, runs
// from construction to destruction.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual absl::string_view name() const = 0;
  // Opens a way to `peer`; gives up at `deadline` with DeadlineExceeded or the cause, naming the
  // peer.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress& peer,
                                                            absl::Time deadline) = 0;
  // Called when memory appears and before it goes; for transports that must register it. The
  // default is to do nothing.
  virtual absl::Status Register(const Memory& memory);
  virtual void Unregister(const Memory& memory);
};

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_TRANSPORT_H_
