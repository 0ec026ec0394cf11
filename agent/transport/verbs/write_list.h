// Turns stream bytes into RDMA writes: one write for each run of the destination, gathering short
// runs of the source.
#ifndef XFER_AGENT_TRANSPORT_VERBS_WRITE_LIST_H_
#define XFER_AGENT_TRANSPORT_VERBS_WRITE_LIST_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "agent/transport/verbs/exposure.h"
#include "agent/transport/verbs/memory.h"
#include "agent/transport/verbs/run_cursor.h"

namespace xfer::verbs {

// Requests that are posted at once. Memory is allocated once, at construction. Not thread-safe.
class WriteList {
 public:
  struct Limits {
    size_t requests = 16;  // of the list
    size_t pieces = 16;    // source pieces of a request
    uint64_t request_bytes = 1 << 20;
  };
  explicit WriteList(const Limits& limits);

  // What a transfer's writes need to know.
  struct Way {
    const std::byte* source = nullptr;              // address that the source offsets count from
    Memory memory;                                  // registered, around it
    uint64_t piece_bytes = 0;                       // of that memory
    absl::Span<const RegisteredMemory::Keys> keys;  // of its pieces, on the device in hand
    const Destination* destination = nullptr;
    size_t rail = 0;  // of the connection: for the destination's keys
  };

  // Empties the list; at most `requests` (and the limit) of them are made from now on.
  void Start(size_t requests);
  // Adds writes of the next bytes of both cursors, at most `bytes`, and moves the cursors. Returns
  // the bytes added: fewer where the list is full.
  uint64_t Add(const Way& way, RunCursor& source, RunCursor& destination, uint64_t bytes);

  size_t requests() const { return size_; }
  // Links the requests and makes the last one signalled, with `notice` as its immediate number.
  ibv_send_wr* Finish(uint64_t id, uint32_t notice);

 private:
  // Bytes up to the end of the region's piece that `offset` is in.
  static uint64_t LeftOfPiece(uint64_t offset, uint64_t piece_bytes, uint64_t region_bytes);
  // Puts `bytes` into the last request, or a new one. False: no room.
  bool Put(uint64_t source, uint32_t local_key, uint64_t destination, uint32_t remote_key,
           uint64_t bytes);

  const Limits limits_;
  size_t most_ = 0;
  size_t size_ = 0;
  uint64_t last_bytes_ = 0;  // of the last request
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;  // limits_.pieces for each request
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_WRITE_LIST_H_
