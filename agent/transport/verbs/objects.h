// libibverbs objects with one owner each: small move-only types whose errors say what failed and
// why.
//
// An object must not outlive what it was made from. The raw calls are thread-safe; moving is not.
#ifndef XFER_AGENT_TRANSPORT_VERBS_OBJECTS_H_
#define XFER_AGENT_TRANSPORT_VERBS_OBJECTS_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/transport/verbs/device.h"

namespace xfer::verbs {

// Calls a libibverbs destructor. All of them return errno or 0 and are synchronous: the device does
// not touch the object's memory any more when they have returned.
template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    kDestroy(object);
  }
};

class ProtectionDomain {
 public:
  static absl::StatusOr<ProtectionDomain> Create(const Context& context);
  ibv_pd* get() const { return pd_.get(); }
  std::string device() const { return ibv_get_device_name(pd_->context->device); }

 private:
  std::unique_ptr<ibv_pd, Destroy<ibv_dealloc_pd>> pd_;
};

// A descriptor that becomes readable when an armed completion queue gets an entry.
class CompletionChannel {
 public:
  static absl::StatusOr<CompletionChannel> Create(const Context& context);  // non-blocking
  ibv_comp_channel* get() const { return channel_.get(); }
  int fd() const { return channel_->fd; }

 private:
  std::unique_ptr<ibv_comp_channel, Destroy<ibv_destroy_comp_channel>> channel_;
};

class CompletionQueue {
 public:
  // At least `entries`. `channel` must outlive the queue.
  static absl::StatusOr<CompletionQueue> Create(const Context& context, int entries,
                                                const CompletionChannel& channel);
  ibv_cq* get() const { return cq_.get(); }
  // The next entries, possibly none.
  absl::StatusOr<absl::Span<const ibv_wc>> Poll(absl::Span<ibv_wc> buffer) const {
    const int n = ibv_poll_cq(get(), static_cast<int>(buffer.size()), buffer.data());
    if (n < 0) return PollError();
    return absl::MakeConstSpan(buffer.data(), static_cast<size_t>(n));
  }
  // The channel tells of the next entry. Poll once more afterwards: an entry that came before is
  // not told.
  absl::Status Arm() const;
  // Takes this queue's events from its channel; the channel must serve no other queue.
  void TakeEvents() const;

 private:
  absl::Status PollError() const;
  std::unique_ptr<ibv_cq, Destroy<ibv_destroy_cq>> cq_;
};

// The other end of a reliable connection, and the way to it.
struct Path {
  uint8_t port = 1;        // own
  bool global = true;      // with a GID (always for RoCE); else by LID
  uint32_t gid_index = 0;  // own
  ibv_gid remote_gid = {};
  uint16_t remote_lid = 0;
  uint32_t remote_qp = 0;
  uint32_t mtu = 1024;                     // bytes, of the path
  uint32_t local_psn = 0, remote_psn = 0;  // first packet sequence numbers, 24 bits
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint8_t ack_timeout = 14;  // 4.096 us * 2^n
  uint8_t retries = 7;       // of a packet, then the queue pair fails
  uint8_t rnr_timer = 12;    // code of the time that a sender without a receive request waits
};

// A reliable connected queue pair. It can be the target of RDMA writes.
class QueuePair {
 public:
  struct Sizes {
    uint32_t send_requests = 1;
    uint32_t receive_requests = 1;
    uint32_t send_sges = 1;
  };
  static absl::StatusOr<QueuePair> Create(const ProtectionDomain& pd, const CompletionQueue& cq,
                                          const Sizes& sizes);
  ibv_qp* get() const { return qp_.get(); }
  uint32_t number() const { return qp_->qp_num; }

  // Reset -> Init -> Ready To Receive; receive requests may be posted from then on. `target`: the
  // other end may write to memory here.
  absl::Status ToReceive(const Path& path, bool target);
  // -> Ready To Send
  absl::Status ToSend(const Path& path);
  // Nothing more is sent or taken; what is queued is flushed.
  absl::Status ToError();

  // A list of work requests. On failure `bad` is the first that was not taken.
  int PostSend(ibv_send_wr* list, ibv_send_wr** bad) { return ibv_post_send(get(), list, bad); }
  // A receive request without memory, for a write with immediate data.
  absl::Status PostReceive(uint64_t id);
  void Reset() { qp_.reset(); }
  bool valid() const { return qp_ != nullptr; }

 private:
  absl::Status Modify(ibv_qp_attr& attributes, int mask, absl::string_view to);
  std::unique_ptr<ibv_qp, Destroy<ibv_destroy_qp>> qp_;
};

class MemoryRegion {
 public:
  // Pins [base, base + bytes) for the device. ResourceExhausted names the locked-memory limit.
  static absl::StatusOr<MemoryRegion> Register(const ProtectionDomain& pd, std::byte* base,
                                               uint64_t bytes, int access);
  uint32_t lkey() const { return mr_->lkey; }
  uint32_t rkey() const { return mr_->rkey; }

 private:
  std::unique_ptr<ibv_mr, Destroy<ibv_dereg_mr>> mr_;
};

// RLIMIT_MEMLOCK of this process in bytes; UINT64_MAX: no limit.
uint64_t LockedMemoryLimit();
// True if the limit does not apply (CAP_IPC_LOCK).
bool MayLockAnyMemory();

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_OBJECTS_H_
