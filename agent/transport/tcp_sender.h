// The sending side of the tcp transport: one session (an endpoint's queue and its completions) over
// several streams (connections), which take their next piece of work from the queue whenever they
// have room.
#ifndef XFER_AGENT_TRANSPORT_TCP_SENDER_H_
#define XFER_AGENT_TRANSPORT_TCP_SENDER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/transport/io_loop.h"
#include "agent/transport/runs.h"
#include "agent/transport/transport.h"
#include "agent/transport/wire.h"
#include "common/base/unique_fd.h"

namespace xfer {

class SendStream;

// A range in work; its chunks may be on several streams.
struct PostedRange {
  SendRange range;
  uint64_t next = 0;  // stream offset up to which chunks were given out; guarded by the session
  uint64_t unwritten = 0;  // bytes; guarded by the session
};

// What a stream writes as one frame.
struct SendChunk {
  std::shared_ptr<PostedRange> posted;  // null: a finish
  uint64_t begin = 0, end = 0;          // of the payload
  bool pack = false;                    // runs so short that they are packed first
  std::array<std::byte, wire::kFrameBytes> header = {};

  uint64_t payload_bytes() const { return end - begin; }
  uint64_t bytes() const { return header.size() + payload_bytes(); }
};

// Thread-safe: the endpoint's thread and the streams' loops share it.
class SendSession {
 public:
  // `peer`: how messages name it. `streams` holds streams that are on their loops already, at least
  // one.
  SendSession(std::string peer, uint64_t chunk_bytes, absl::Duration stall_timeout)
      : peer_(std::move(peer)), chunk_bytes_(chunk_bytes), stall_timeout_(stall_timeout) {}

  // For the endpoint.
  void AddStream(std::shared_ptr<SendStream> stream);
  absl::Status PostRange(const SendRange& range);
  absl::Status PostFinish(const SyncKey& sync, const Transfer& transfer, uint64_t digest);
  absl::Status Poll(absl::Duration timeout, std::vector<Completion>& out);
  // Closes all streams; nothing reads source memory any more when it returns.
  void Close();

  // For the streams. Fills an empty `batch` with the next chunks; false: there is nothing, and the
  // stream will be kicked when there is.
  bool Take(SendStream* stream, std::vector<SendChunk>& batch);
  // Bytes went out, and with them the chunks [0, chunks) of the batch.
  void Written(const std::vector<SendChunk>& batch, size_t chunks);
  void Progress();
  // Fails the session if nothing has moved for too long though something should.
  void CheckStall(int64_t now_nanos);
  // The stream's socket is full; has room again.
  void Blocked();
  void Unblocked();
  absl::Status Answered(uint64_t sync_id, TransferId transfer, const absl::Status& status);
  // The first failure is the session's; the other streams are closed.
  void Fail(const absl::Status& status);

 private:
  struct QueueItem {
    std::shared_ptr<PostedRange> posted;  // null: `finish`
    wire::Frame finish;
  };
  struct AnswerKey {
    uint64_t sync_id;
    TransferId transfer;
    friend bool operator==(const AnswerKey&, const AnswerKey&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const AnswerKey& key) {
      return H::combine(std::move(h), key.sync_id, key.transfer);
    }
  };

  bool Outstanding() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ranges_ > 0 || !finishes_.empty();
  }
  void Queued(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KickIfUseful() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Usable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string peer_;
  const uint64_t chunk_bytes_;
  const absl::Duration stall_timeout_;
  std::atomic<int64_t> progress_nanos_{0};  // when something last moved

  absl::Mutex mu_;
  absl::CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<SendStream>> streams_ ABSL_GUARDED_BY(mu_);
  std::vector<SendStream*> idle_ ABSL_GUARDED_BY(mu_);
  size_t blocked_ ABSL_GUARDED_BY(mu_) = 0;  // streams whose socket is full
  std::deque<QueueItem> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t ranges_ ABSL_GUARDED_BY(mu_) = 0;  // posted and not written yet
  absl::flat_hash_map<TransferKey, uint64_t> announced_
      ABSL_GUARDED_BY(mu_);                                             // bytes, until the finish
  absl::flat_hash_map<AnswerKey, bool> finishes_ ABSL_GUARDED_BY(mu_);  // not answered yet
  std::vector<Completion> completions_ ABSL_GUARDED_BY(mu_);
};

// One connection. All but Kick() and Close() is for its loop's thread.
class SendStream final : public IoHandler, public std::enable_shared_from_this<SendStream> {
 public:
  SendStream(UniqueFd fd, IoLoop* loop, std::shared_ptr<SendSession> session)
      : fd_(std::move(fd)), loop_(loop), session_(std::move(session)) {}

  // Starts to serve the connection.
  absl::Status Open();
  // There is work in the session's queue. Any thread.
  void Kick();
  // Any thread; `wait`: until it is closed.
  void Close(bool wait);

  void OnEvents(uint32_t events) override;
  void OnTick(int64_t now_nanos) override;

 private:
  void Pump();
  void ReadAnswers();
  absl::Status ParseAnswers();
  // Collects what sendmsg is to send next from the batch. Returns its bytes.
  uint64_t Gather();
  void Advance(uint64_t bytes);
  void WantWrite(bool on);
  void CloseNow();
  void Fail(const absl::Status& status);

  UniqueFd fd_;
  IoLoop* const loop_;
  std::shared_ptr<SendSession> session_;  // until closed
  bool want_write_ = false;
  bool blocked_ = false;  // as the session was told
  std::vector<SendChunk> batch_;
  size_t front_ = 0;            // chunk of the batch that is being written
  uint64_t front_written_ = 0;  // bytes of its frame
  std::vector<iovec> iovecs_;
  std::string answers_;  // read and not yet parsed
};

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_TCP_SENDER_H_
