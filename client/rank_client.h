// The library that a training or rollout process links to take part: it registers the process's
// memory with the agent of its node and answers the agent's hooks. No gRPC in this header.
#ifndef XFER_CLIENT_RANK_CLIENT_H_
#define XFER_CLIENT_RANK_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/unique_fd.h"
#include "common/layout/manifest.h"
#include "common/plan/plan.h"

namespace xfer {

// Shared host memory: a memfd mapped into this process. Move-only.
class SharedMemory {
 public:
  // `name` is seen in /proc only. ResourceExhausted names the bytes where there is too little
  // memory.
  static absl::StatusOr<SharedMemory> Create(const std::string& name, uint64_t bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  absl::Span<std::byte> bytes() const { return {base_, bytes_}; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory() = default;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

// A region to register: bytes [offset, offset + bytes) of `fd`, which stays the caller's.
struct RegionSource {
  int fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

enum class Hook : uint8_t { kHold = 1, kRelease = 2, kPause = 3, kPostLoad = 4, kResume = 5 };

struct HookCall {
  Hook hook;
  uint64_t sync_id = 0;
  int64_t version = 0;
  absl::Time deadline;   // an answer after it is too late
  absl::Status outcome;  // release, resume: how the sync ended for this rank
};

struct RankOptions {
  std::string job;
  RankId id;
  int32_t world = 1;          // trainers: ranks of the world; rollout: ranks of the engine
  int32_t device = 0;         // local device index
  int64_t ready_version = 0;  // trainers: version of the weights; 0: not said
  std::vector<RegionSource> regions;
  std::vector<TensorPlacement> tensors;
  // Called on a thread of the library, one call at a time for each rank; hooks not in `hooks` are
  // not called.
  std::function<absl::Status(const HookCall&)> on_hook;
  std::vector<Hook> hooks;
  // Called once, on a thread of the library, when the agent or the session has gone; the rank is
  // then no longer registered.
  std::function<void(const absl::Status&)> on_lost;
  absl::Duration deadline = absl::Seconds(30);
};

// A registered rank. Destroying it unregisters. Thread-safe.
class RegisteredRank {
 public:
  virtual ~RegisteredRank() = default;
  virtual uint64_t registration_id() const = 0;
  // Trainers: the weights are at `version` now.
  virtual absl::Status ReportReady(int64_t version) = 0;
  // The owner's verdict on its weights at `version`.
  virtual absl::Status ReportVerdict(int64_t version, const absl::Status& verdict) = 0;
};

// One connection to the agent of this node. Thread-safe.
class RankClient {
 public:
  // `socket` is the path of the agent's Unix socket. Unavailable / DeadlineExceeded names it.
  static absl::StatusOr<std::unique_ptr<RankClient>> Connect(const std::string& socket,
                                                             absl::Duration timeout);
  virtual ~RankClient() = default;
  virtual absl::StatusOr<std::unique_ptr<RegisteredRank>> Register(const RankOptions& options) = 0;
};

}  // namespace xfer

#endif  // XFER_CLIENT_RANK_CLIENT_H_
