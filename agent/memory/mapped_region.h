// Memory of another process, mapped into this one.
#ifndef XFER_AGENT_MEMORY_MAPPED_REGION_H_
#define XFER_AGENT_MEMORY_MAPPED_REGION_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace xfer {

// Move-only; unmaps when destroyed. What the bytes hold is shared with their owner; the object
// itself is not thread-safe.
class MappedRegion {
 public:
  // Maps bytes [offset, offset + bytes) of `fd` shared, readable and writable. The descriptor may
  // be closed afterwards. `offset` must be a multiple of the page size.
  //
  // The file is sealed against shrinking first (F_SEAL_SHRINK), because its owner could otherwise
  // cut it and every access to the lost pages would end this process with SIGBUS.
  // FailedPrecondition: it cannot be sealed. InvalidArgument: no memory file, a bad range, or a
  // file shorter than the range.
  static absl::StatusOr<MappedRegion> Map(int fd, uint64_t offset, uint64_t bytes);

  MappedRegion(MappedRegion&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedRegion& operator=(MappedRegion&& other) noexcept;
  ~MappedRegion();

  absl::Span<std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedRegion(absl::Span<std::byte> bytes) : bytes_(bytes) {}
  absl::Span<std::byte> bytes_;
};

}  // namespace xfer

#endif  // XFER_AGENT_MEMORY_MAPPED_REGION_H_
