// The session streams of this node's ranks: hooks go down, results and reports come up.
#ifndef XFER_AGENT_SERVICE_RANK_SESSIONS_H_
#define XFER_AGENT_SERVICE_RANK_SESSIONS_H_

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "agent/exec/interfaces.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer {

// What sessions lead to; called without locks held, from gRPC's threads, so it must not block for
// long.
class RankSessionListener {
 public:
  virtual ~RankSessionListener() = default;
  // OK: there is such a registration.
  virtual absl::Status OnAttach(uint64_t registration_id) = 0;
  virtual void OnReady(uint64_t registration_id, int64_t version) = 0;
  virtual void OnVerdict(uint64_t registration_id, const v1::OwnerVerdict& verdict) = 0;
  // The session of a registration that was attached has ended.
  virtual void OnSessionEnd(uint64_t registration_id, const std::string& reason) = 0;
};

// Thread-safe. Streams must all have ended (server shut down) before it is destroyed.
class RankSessions final : public HookCaller {
 public:
  // `listener` is borrowed.
  explicit RankSessions(RankSessionListener* listener) : listener_(listener) {}

  using Reactor = grpc::ServerBidiReactor<v1::RankEvent, v1::RankCommand>;
  // A reactor for a new stream; owns itself.
  Reactor* Open();

  void Call(const HookOrder& order, std::function<void(absl::Status)> done) override;

  // Whether a session is attached to the registration.
  bool Attached(uint64_t registration_id) const;
  // The registration was replaced: its session goes on with the new one.
  void Rebind(uint64_t old_id, uint64_t new_id);
  // Ends the session of a registration that is gone; OnSessionEnd() is not called for it.
  void Close(uint64_t registration_id, const absl::Status& reason);

 private:
  class Stream;
  using StreamPtr = std::shared_ptr<Stream>;

  absl::Status Attach(const StreamPtr& stream, uint64_t registration_id);
  // Returns the registration that the stream was attached to, 0: none (any more).
  uint64_t Detach(const Stream* stream);
  uint64_t RegistrationOf(const Stream* stream) const;

  RankSessionListener* const listener_;
  std::atomic<uint64_t> next_call_{1};
  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, StreamPtr> streams_ ABSL_GUARDED_BY(mu_);  // by registration
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_RANK_SESSIONS_H_
