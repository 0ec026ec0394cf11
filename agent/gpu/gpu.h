// The GPUs of this node, as the rest of the agent sees them: memory of other processes, and what is
// done with it. No CUDA in this header; where the agent is built without it, or runs without a
// driver, OpenGpus() says so and everything else works.
//
// A CUDA context takes some hundred MB of a GPU: one is made when the first memory of that GPU is
// mapped, not before.
#ifndef XFER_AGENT_GPU_GPU_H_
#define XFER_AGENT_GPU_GPU_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"
#include "common/plan/plan.h"

namespace xfer {

struct GpuOptions {
  // Pinned host memory that copies between GPU and host go through, in all, bytes; taken when it is
  // first needed.
  uint64_t staging_bytes = uint64_t{256} << 20;
};

struct GpuInfo {
  int32_t index = 0;  // among this node's GPUs as this process sees them
  std::string uuid;   // 16 bytes
  std::string name;
  uint64_t memory_bytes = 0;
};

// "GPU-01234567-89ab-..." as nvidia-smi prints it.
std::string FormatUuid(const std::string& uuid);

// GPU memory as its owner hands it out; exactly one of `ipc_handle` and `segments` is given.
struct GpuExport {
  std::string uuid;        // of the GPU
  std::string ipc_handle;  // CUDA IPC handle of a whole allocation
  struct Segment {
    UniqueFd fd;  // a physical allocation (VMM) as a POSIX descriptor
    uint64_t bytes = 0;
  };
  std::vector<Segment> segments;  // one behind the other under one range
  uint64_t offset = 0;            // within the allocation, or the range of all segments
  uint64_t bytes = 0;
};

// What is wrong with `memory`, as far as it shows without a GPU: InvalidArgument names it.
absl::Status CheckGpuExport(const GpuExport& memory);

// Pinned memory; goes back to its pool when destroyed.
using PinnedBuffer = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

class Gpu;

// Where bytes lie: `gpu` is null for host memory. Borrowed.
struct Place {
  std::byte* base = nullptr;
  Gpu* gpu = nullptr;
};

// One GPU. All work is done when the call returns; several threads' calls run on the GPU at once,
// each on a stream of its own. Nothing is allocated once as many calls as there are threads have
// been made. Errors name the GPU and the operation. Transfers must be without conversion and have
// passed CheckTransfer(). Thread-safe.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const GpuInfo& info() const = 0;

  // Stream bytes [begin, end) of the transfer to a contiguous piece of pinned or pageable host
  // memory, or from there.
  virtual absl::Status Pack(const Transfer& transfer, const std::byte* source, uint64_t begin,
                            uint64_t end, std::byte* out) = 0;
  virtual absl::Status Unpack(const Transfer& transfer, std::byte* destination, uint64_t begin,
                              uint64_t end, const std::byte* in) = 0;

  // The part of the transfer's digest (common/base/digest.h) that stream bytes [begin, end)
  // contribute, read at the source's or the destination's side. `begin` is a multiple of
  // kDigestLeafBytes.
  virtual absl::StatusOr<uint64_t> Digest(const Transfer& transfer, bool source_side,
                                          const std::byte* base, uint64_t begin, uint64_t end) = 0;

  // Converts the elements of stream bytes [begin, end) of `gather`, whose bytes are of type `from`,
  // and writes them to host memory one behind the other.
  virtual absl::Status Convert(const Transfer& gather, DType from, DType to,
                               const std::byte* source, uint64_t begin, uint64_t end,
                               std::byte* out) = 0;

  // Of `bytes` bytes. ResourceExhausted: the pool's limit is reached; others give theirs back when
  // their copies are done.
  virtual absl::StatusOr<PinnedBuffer> Staging(uint64_t bytes) = 0;
};

// Copies stream bytes [begin, end) from where `from` has its sources to where `to` has its
// destinations; the two are forms of one transfer, and mostly the same. At least one side is GPU
// memory. Where the two forms differ, or two GPUs have no access to each other, the bytes go
// through the host.
absl::Status GpuCopy(const Transfer& from, const Place& source, const Transfer& to,
                     const Place& destination, uint64_t begin, uint64_t end);

// Memory of another process, mapped; unmapped when destroyed. Outlived by its Gpu.
class GpuMapping {
 public:
  virtual ~GpuMapping() = default;
  virtual std::byte* base() const = 0;
  virtual uint64_t bytes() const = 0;
  virtual Gpu* gpu() const = 0;
};

// Thread-safe.
class GpuSystem {
 public:
  virtual ~GpuSystem() = default;
  virtual std::vector<GpuInfo> gpus() const = 0;
  // By its index; null: there is no such one.
  virtual Gpu* gpu(int32_t index) const = 0;
  // InvalidArgument: a range beyond the allocation, a handle that is none; NotFound: no such GPU
  // here; both say what to do.
  virtual absl::StatusOr<std::unique_ptr<GpuMapping>> Map(GpuExport memory) = 0;
};

// Looks for the driver and the GPUs; makes no context. Unimplemented: built without CUDA.
// FailedPrecondition: no driver or no GPU. Both name the remedy.
absl::StatusOr<std::unique_ptr<GpuSystem>> OpenGpus(const GpuOptions& options);

}  // namespace xfer

#endif  // XFER_AGENT_GPU_GPU_H_
