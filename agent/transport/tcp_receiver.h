// The receiving side of the tcp transport: the listening socket, the streams (connections) and,
// over the streams of one sender's endpoint, the session. Everything read from a socket is
// untrusted.
#ifndef XFER_AGENT_TRANSPORT_TCP_RECEIVER_H_
#define XFER_AGENT_TRANSPORT_TCP_RECEIVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/transport/io_loop.h"
#include "agent/transport/runs.h"
#include "agent/transport/tcp.h"
#include "agent/transport/transport.h"
#include "agent/transport/wire.h"
#include "common/base/unique_fd.h"

namespace xfer {

class ReceiveStream;

// What the streams of one endpoint have in common: which bytes have arrived, which finishes wait
// for bytes. When one stream breaks, the session is over and all its streams are closed.
// Thread-safe.
class ReceiveSession {
 public:
  ReceiveSession(uint64_t id, std::string peer, ReceiveTable* table)
      : id_(id), peer_(std::move(peer)), table_(table) {}

  uint64_t id() const { return id_; }
  const std::string& peer() const { return peer_; }

  void AddStream(const std::shared_ptr<ReceiveStream>& stream);
  // Closes all streams of the session, each on its own loop.
  void End(absl::string_view reason);

  // A payload is about to come: enters the table. `target` is not OK: the payload is to be drained,
  // and its transfer's finish will be answered with that. Returns not OK: the connection must be
  // closed.
  absl::Status BeginRange(const wire::Frame& frame, absl::StatusOr<ReceiveTable::Target>& target);
  // All of the payload has been put in place (and Arrived() was called) or drained. `entered`:
  // BeginRange gave a target.
  void EndRange(const wire::Frame& frame, bool entered);
  // The finish is answered on `stream`, now or when its bytes have settled. Not OK: close the
  // connection.
  absl::Status Finish(const wire::Frame& frame, const std::shared_ptr<ReceiveStream>& stream);

  void Progress();
  // Nanoseconds since bytes last came on any stream while a finish waits for some; 0: none waits.
  int64_t HeldFor(int64_t now_nanos);

 private:
  struct HeldFinish {
    uint64_t announced = 0;
    uint64_t digest = 0;
    std::weak_ptr<ReceiveStream> stream;
  };
  struct State {
    std::map<uint64_t, uint64_t> ranges;  // begin -> end; disjoint, adjacent ones joined
    uint64_t settled = 0;                 // payload bytes that arrived or were drained
    absl::Status refused;                 // the first range that was
    std::optional<HeldFinish> finish;
  };

  absl::StatusOr<ReceiveTable::Target> Admit(const wire::Frame& frame);
  // Takes the finish out if all its bytes have settled.
  std::optional<HeldFinish> ReadyFinish(const TransferKey& key, absl::Status& refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(const TransferKey& key, const HeldFinish& finish, const absl::Status& refused);

  const uint64_t id_;
  const std::string peer_;
  ReceiveTable* const table_;
  std::atomic<int64_t> progress_nanos_{0};

  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::weak_ptr<ReceiveStream>> streams_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<TransferKey, State> states_ ABSL_GUARDED_BY(mu_);
  size_t held_ ABSL_GUARDED_BY(mu_) = 0;  // finishes that wait
};

// Listens, greets, and knows all sessions. Thread-safe.
class TcpReceiver {
 public:
  static absl::StatusOr<std::unique_ptr<TcpReceiver>> Start(const TcpOptions& options,
                                                            std::shared_ptr<IoPool> pool);
  // Closes the listening socket and all connections; the table is not called any more afterwards.
  ~TcpReceiver();

  uint16_t port() const { return port_; }

  // For the streams.
  const TcpOptions& options() const { return options_; }
  // The session a hello belongs to, or why it is refused.
  absl::StatusOr<std::shared_ptr<ReceiveSession>> Greet(const wire::Hello& hello,
                                                        absl::string_view address);
  void Closed(ReceiveStream* stream);

 private:
  class Listener;

  void Accepted(UniqueFd fd, std::string address);
  TcpReceiver(const TcpOptions& options, std::shared_ptr<IoPool> pool)
      : options_(options), pool_(std::move(pool)) {}

  const TcpOptions options_;
  const std::shared_ptr<IoPool> pool_;
  uint16_t port_ = 0;
  std::shared_ptr<Listener> listener_;

  absl::Mutex mu_;
  absl::flat_hash_map<ReceiveStream*, std::weak_ptr<ReceiveStream>> streams_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::weak_ptr<ReceiveSession>> sessions_ ABSL_GUARDED_BY(mu_);
};

// One accepted connection: a state machine over what has been read. For its loop's thread, except
// where said.
class ReceiveStream final : public IoHandler, public std::enable_shared_from_this<ReceiveStream> {
 public:
  ReceiveStream(UniqueFd fd, std::string address, IoLoop* loop, TcpReceiver* receiver);

  void Open();
  // Any thread. `wait`: until it is closed.
  void Close(absl::string_view reason, bool wait);
  // Queues an answer. Any thread.
  void Answer(std::string bytes);

  void OnEvents(uint32_t events) override;
  void OnTick(int64_t now_nanos) override;

 private:
  // Each returns an error that closes the connection.
  absl::Status Read();
  absl::StatusOr<bool> ReadOnce(uint64_t& bytes);  // false: there is no more to read now
  absl::Status Consume(absl::Span<const std::byte> bytes);
  absl::Status ConsumeHello();
  absl::Status StartFrame();
  absl::Status Flush();
  // Payload bytes [at_, at_ + bytes) are in place or dropped.
  void Arrived(uint64_t bytes);
  bool InPayload() const { return at_ < frame_.end() && in_payload_; }
  void UpdateEvents();
  void CloseNow(const absl::Status& reason);

  UniqueFd fd_;
  std::string address_;
  IoLoop* const loop_;
  TcpReceiver* receiver_;                    // outlives the open stream
  std::shared_ptr<ReceiveSession> session_;  // null: no hello yet
  const int64_t opened_nanos_;
  int64_t read_nanos_;     // when bytes last came
  int64_t written_nanos_;  // when answers last went, or began to wait
  uint32_t events_ = 0;    // asked for

  std::string head_;   // of a hello or a frame, incomplete
  bool bulk_ = false;  // the last payload was large: read nothing but headers into the scratch
  bool in_payload_ = false;
  wire::Frame frame_;
  bool entered_ = false;  // else the payload is dropped
  bool scatter_ = false;  // its runs are short: through the scratch
  ReceiveTable::Target target_;
  uint64_t at_ = 0;        // stream offset of the payload's next byte
  uint64_t reported_ = 0;  // up to which Arrived() was called
  std::vector<iovec> iovecs_;
  std::string out_;       // answers, not written yet
  bool reading_ = false;  // in Read(), which flushes when it is done
};

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_TCP_RECEIVER_H_
