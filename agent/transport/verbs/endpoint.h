// The sending end: cuts ranges into writes, spreads them over the queue pairs of all rails, follows
// them until they are acknowledged, and moves those of a failed rail to the others.
#ifndef XFER_AGENT_TRANSPORT_VERBS_ENDPOINT_H_
#define XFER_AGENT_TRANSPORT_VERBS_ENDPOINT_H_

#include <poll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/transport/runs.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/connection.h"
#include "agent/transport/verbs/control.h"
#include "agent/transport/verbs/memory.h"
#include "agent/transport/verbs/options.h"
#include "agent/transport/verbs/rails.h"
#include "agent/transport/verbs/run_cursor.h"
#include "agent/transport/verbs/write_list.h"
#include "common/base/unique_fd.h"

namespace xfer::verbs {

// The work is done in PostRange() and Poll(), by the caller's thread: it polls the completion
// queues while there is work, and sleeps on their channels when there is none.
class VerbsEndpoint final : public Endpoint {
 public:
  // What an endpoint shares with its transport.
  struct Shared {
    std::shared_ptr<Rails> rails;
    std::shared_ptr<MemoryTable> memory;
    std::shared_ptr<VerbsControl> control;
  };
  VerbsEndpoint(const PeerAddress& peer, Shared shared, const Tuning& tuning, Connection connection,
                UniqueFd wake);
  ~VerbsEndpoint() override;

  absl::Status PostRange(const SendRange& range) override;
  absl::Status PostFinish(const SyncKey& sync, const Transfer& transfer, uint64_t digest) override;
  absl::Status Poll(absl::Duration timeout, std::vector<Completion>& out) override;

 private:
  struct TransferState;
  // A range until all its bytes are acknowledged.
  struct Posted {
    SendRange range;
    std::shared_ptr<RegisteredMemory> source;
    TransferState* state = nullptr;
    uint64_t unacknowledged = 0;  // bytes
  };
  using PostedPtr = std::shared_ptr<Posted>;
  // From the first range to the finish's answer.
  struct TransferState {
    TransferKey key;
    bool open = false;  // the receiver has said where it goes
    absl::Status refused;
    Destination destination;
    std::vector<PostedPtr> waiting;       // for that
    std::map<uint64_t, uint64_t> ranges;  // posted: begin -> end; disjoint, adjacent ones joined
    uint64_t unacknowledged = 0;          // ranges
    bool finishing = false;
    bool finish_sent = false;
    uint64_t digest = 0;
    absl::InlinedVector<std::pair<uint32_t, uint32_t>, 8> notices;  // queue pair -> last notice
    absl::InlinedVector<uint64_t, 4> by_rail;                       // acknowledged bytes
  };
  // Bytes of a range that are to be written.
  struct Work {
    PostedPtr posted;
    uint64_t begin = 0, end = 0;
    RunCursor source, destination;
  };
  struct Part {
    PostedPtr posted;
    uint64_t begin = 0, end = 0;
  };
  // A list of requests that was posted.
  struct Sent {
    uint32_t requests = 0;
    uint32_t notice = 0;
    uint64_t bytes = 0;
    absl::InlinedVector<Part, 2> parts;
  };
  struct Pair {
    QueuePair qp;
    uint32_t number = 0;  // of the session
    uint32_t notices = 0;
    uint32_t free = 0;   // requests
    uint64_t bytes = 0;  // under way
    std::deque<Sent> sent;
  };
  struct Rail {
    size_t port = 0;
    size_t device = 0;
    size_t index = 0;        // of the connection
    std::string name;        // for messages
    std::string short_name;  // the own port's, for timings
    CompletionChannel channel;
    CompletionQueue cq;
    std::vector<Pair> pairs;
    bool live = true;
  };

  absl::Status Usable() const;  // for posting
  bool Outstanding() const { return ranges_ > 0 || finishes_ > 0; }
  absl::Status AddRange(TransferState& state, const SendRange& range);
  TransferState& StateOf(const SyncKey& sync, const Transfer& transfer);
  void Queue(const PostedPtr& posted, uint64_t begin, uint64_t end, bool front);
  void RangeDone(const PostedPtr& posted, const absl::Status& status);
  void SendFinish(TransferState& state);
  void FinishDone(TransferState& state, const absl::Status& status);

  // Each says whether it did something.
  bool Progress();
  bool TakeControl();
  bool PollRail(Rail& rail);
  void Acknowledged(const Rail& rail, Pair& pair);
  void Failed(Rail& rail, const ibv_wc& completion);
  void CheckPorts();
  bool PostLists();
  Pair* PickPair(Rail*& rail);
  bool PostList(Rail& rail, Pair& pair);
  void GiveUp(Rail& rail, const std::string& why);
  void Fail(const absl::Status& status);
  void CheckStall(absl::Time now);
  void Sleep(absl::Time until);

  const PeerAddress peer_;
  const std::string who_;
  const Shared shared_;
  const Tuning tuning_;
  UniqueFd wake_;
  absl::Status status_;
  std::vector<Rail> rails_;
  size_t live_pairs_ = 0;
  WriteList list_;
  absl::flat_hash_map<TransferKey, std::unique_ptr<TransferState>> transfers_;
  std::deque<Work> work_;
  uint64_t work_bytes_ = 0;
  size_t ranges_ = 0;    // not completed
  size_t finishes_ = 0;  // likewise
  std::vector<Completion> completions_;
  absl::Time progress_ = absl::Now();  // when something last moved
  std::vector<pollfd> fds_;
  std::vector<ExposeResult> exposed_;  // kept for their memory
  std::vector<FinishResult> finished_;
  std::unique_ptr<ControlCalls> calls_;
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_ENDPOINT_H_
