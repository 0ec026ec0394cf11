// Registered memory: which regions the devices may reach, in pieces that the devices can take, and
// by which keys.
#ifndef XFER_AGENT_TRANSPORT_VERBS_MEMORY_H_
#define XFER_AGENT_TRANSPORT_VERBS_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/objects.h"
#include "agent/transport/verbs/rails.h"

namespace xfer::verbs {

// One region on all devices. The keys can be read from any thread while the object lives; after
// Drop() the devices refuse them.
class RegisteredMemory {
 public:
  static absl::StatusOr<std::shared_ptr<RegisteredMemory>> Register(const Rails& rails,
                                                                    const Memory& memory,
                                                                    uint64_t piece_bytes,
                                                                    bool relaxed_ordering);

  const Memory& memory() const { return memory_; }
  uint64_t piece_bytes() const { return piece_bytes_; }
  size_t pieces() const { return keys_.front().size(); }
  bool Contains(const Memory& other) const {
    return other.base >= memory_.base && other.bytes <= memory_.bytes &&
           static_cast<uint64_t>(other.base - memory_.base) <= memory_.bytes - other.bytes;
  }

  struct Keys {
    uint32_t local = 0;
    uint32_t remote = 0;
  };
  // Of each piece, on device `device` of the rails.
  absl::Span<const Keys> keys(size_t device) const { return keys_[device]; }

  // Of the memory to device `device` of the rails.
  Nearness nearness(size_t device) const { return nearness_[device]; }

  // Takes the memory away from the devices; writes under way fail. Once, from one thread.
  void Drop();
  bool dropped() const { return dropped_.load(std::memory_order_acquire); }

 private:
  RegisteredMemory(const Memory& memory, uint64_t piece_bytes)
      : memory_(memory), piece_bytes_(piece_bytes) {}

  const Memory memory_;
  const uint64_t piece_bytes_;
  std::vector<std::vector<Keys>> keys_;  // of each device, of each piece
  std::vector<Nearness> nearness_;       // of each device
  std::vector<MemoryRegion> regions_;
  std::atomic<bool> dropped_{false};
};

// All registered memory of a transport, kept from Register() to Unregister(), whatever syncs come
// and go. Thread-safe.
class MemoryTable {
 public:
  MemoryTable(std::shared_ptr<Rails> rails, uint64_t region_bytes, bool relaxed_ordering);
  ~MemoryTable();

  // AlreadyExists where it overlaps memory that is registered.
  absl::Status Add(const Memory& memory);
  // Memory for one range, which is not in the table; dropped with the object. It may share pages
  // with what others have registered.
  absl::StatusOr<std::shared_ptr<RegisteredMemory>> AddUnlisted(const Memory& memory) const;
  // Drops the memory that starts there; the object, if there was one.
  std::shared_ptr<RegisteredMemory> Remove(const Memory& memory);
  // The one that holds all of `memory`. FailedPrecondition names the range.
  absl::StatusOr<std::shared_ptr<RegisteredMemory>> Find(const Memory& memory) const;

 private:
  const std::shared_ptr<Rails> rails_;
  const bool relaxed_ordering_;
  uint64_t piece_bytes_;
  mutable absl::Mutex mu_;
  std::map<std::byte*, std::shared_ptr<RegisteredMemory>> regions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_MEMORY_H_
