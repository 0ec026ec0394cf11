// The receiving end of one sender's endpoint: its queue pairs, the notices that came, the transfers
// exposed.
#ifndef XFER_AGENT_TRANSPORT_VERBS_SESSION_H_
#define XFER_AGENT_TRANSPORT_VERBS_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/transport/runs.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/memory.h"
#include "agent/transport/verbs/objects.h"
#include "agent/transport/verbs/options.h"
#include "agent/transport/verbs/rails.h"
#include "xfer/v1/agent.pb.h"

namespace xfer::verbs {

// When the destination may read. The acknowledgement of an RDMA write says nothing about the
// receiver's memory: the contents are undefined until a later message on the same queue pair, with
// a completion at the receiver, has completed there (InfiniBand Architecture Specification, volume
// 1, 9.5 "Transaction Ordering", on the contents of an RDMA WRITE's buffer at the responder). So
// every list of writes ends with an RDMA write with immediate data, which completes a receive
// request here, after all writes before it on that queue pair. That holds with relaxed ordering as
// well: it reorders the NIC's stores, but "a completion still ensures all data is visible,
// including data from prior transfers" (man ibv_reg_mr, IBV_ACCESS_RELAXED_ORDERING). A transfer's
// bytes are read, then, when for each queue pair that wrote some of them the notice that the
// sender's finish names has been polled from the completion queue.
//
// Thread-safe.
class Session {
 public:
  // Takes the connect request's queue pairs to "ready to receive" and fills the reply but for its
  // lease.
  static absl::StatusOr<std::shared_ptr<Session>> Open(uint64_t id, const v1::VerbsConnect& request,
                                                       std::shared_ptr<Rails> rails,
                                                       const Tuning& tuning, ReceiveTable* table,
                                                       v1::VerbsConnectReply& reply);
  ~Session();

  uint64_t id() const { return id_; }
  const std::string& peer() const { return peer_; }

  absl::Status Expose(const v1::VerbsExpose& request, const MemoryTable& memory,
                      v1::VerbsExposeReply& reply);
  // Waits for the notices until `deadline`.
  absl::Status Finish(const v1::VerbsFinish& request, absl::Time deadline,
                      v1::VerbsFinishReply& reply);
  // Destroys the queue pairs, then leaves what is exposed. Whoever waits in Finish() is told.
  void Close(const absl::Status& reason);
  // True if a transfer into that memory is exposed.
  bool Uses(const RegisteredMemory* memory);

  // For the receiver's thread: descriptors of the completion channels, one a rail; what to do when
  // one of them is readable.
  std::vector<int> channels() const;
  void Drain(size_t rail);
  // When the sender was last heard of; Close() it when that was too long ago.
  void Heard();
  absl::Time last_heard();

 private:
  struct Pair {
    QueuePair qp;
    uint32_t notices = 0;   // that came
    uint32_t requests = 0;  // receive requests that are posted
    bool failed = false;    // in the error state
  };
  struct Rail {
    std::string name;
    CompletionChannel channel;
    CompletionQueue cq;
    std::vector<Pair> pairs;
    size_t first = 0;  // number of its first pair in the session
  };
  struct Exposed {
    ReceiveTable::Target target;
    std::shared_ptr<RegisteredMemory> memory;
    bool finishing = false;
  };

  Session(uint64_t id, std::string peer, std::shared_ptr<Rails> rails, ReceiveTable* table)
      : id_(id), peer_(std::move(peer)), rails_handle_(std::move(rails)), table_(table) {}

  absl::Status OpenRail(const v1::VerbsRail& request, uint32_t receive_requests,
                        const Tuning& tuning, v1::VerbsConnectReply& reply);
  absl::Status ExposeOne(const v1::VerbsTransfer& request, const MemoryTable& memory,
                         std::vector<std::shared_ptr<RegisteredMemory>>& regions,
                         v1::VerbsTarget& target);
  absl::Status FinishOne(const v1::VerbsFinished& request, absl::Time deadline);
  absl::Status CheckRanges(const v1::VerbsFinished& request, uint64_t bytes) const;
  absl::Status AwaitNotices(const v1::VerbsFinished& request, absl::Time deadline);
  // Makes a queue pair that the sender has given up harmless.
  absl::Status Retire(uint32_t number, absl::Time deadline);
  void DrainLocked(Rail& rail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(Rail& rail, const ibv_wc& completion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Pair* FindPair(uint32_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t id_;
  const std::string peer_;
  const std::shared_ptr<Rails> rails_handle_;
  ReceiveTable* const table_;
  std::vector<size_t> devices_;  // of each rail; constant after Open()

  absl::Mutex mu_;
  absl::CondVar changed_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::Time heard_ ABSL_GUARDED_BY(mu_) = absl::Now();
  std::vector<std::unique_ptr<Rail>>
      rails_;  // the vector is constant after Open(); contents under mu_
  absl::flat_hash_map<TransferKey, Exposed> exposed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_SESSION_H_
