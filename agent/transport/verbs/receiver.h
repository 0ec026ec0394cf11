// The receiving side of the verbs transport: answers control messages, keeps the sessions, takes
// their notices.
#ifndef XFER_AGENT_TRANSPORT_VERBS_RECEIVER_H_
#define XFER_AGENT_TRANSPORT_VERBS_RECEIVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/memory.h"
#include "agent/transport/verbs/options.h"
#include "agent/transport/verbs/rails.h"
#include "agent/transport/verbs/session.h"
#include "common/base/unique_fd.h"
#include "xfer/v1/agent.pb.h"

namespace xfer::verbs {

// Thread-safe. One thread sleeps until notices come.
class Receiver {
 public:
  static absl::StatusOr<std::unique_ptr<Receiver>> Start(uint64_t incarnation, const Tuning& tuning,
                                                         ReceiveTable* table,
                                                         std::shared_ptr<Rails> rails,
                                                         std::shared_ptr<MemoryTable> memory);
  // Refuses new calls, ends the sessions and waits for the calls that run; the table is not called
  // any more afterwards.
  ~Receiver();

  absl::StatusOr<v1::VerbsReply> Serve(const v1::VerbsRequest& request);
  // Ends all sessions and refuses new calls; calls that run return soon.
  void Stop();
  // Ends the sessions that have transfers into that memory.
  void MemoryGone(const RegisteredMemory* memory);

 private:
  Receiver(uint64_t incarnation, const Tuning& tuning, ReceiveTable* table,
           std::shared_ptr<Rails> rails, std::shared_ptr<MemoryTable> memory)
      : incarnation_(incarnation),
        tuning_(tuning),
        table_(table),
        rails_(std::move(rails)),
        memory_(std::move(memory)) {}

  absl::StatusOr<v1::VerbsReply> Dispatch(const v1::VerbsRequest& request);
  absl::Status CheckIncarnation(const std::string& node, uint64_t expected) const;
  absl::Status Hello(const v1::VerbsHello& request, v1::VerbsHelloReply& reply);
  absl::Status Connect(const v1::VerbsConnect& request, v1::VerbsConnectReply& reply);
  absl::StatusOr<std::shared_ptr<Session>> FindSession(uint64_t id);
  void End(const std::shared_ptr<Session>& session, const absl::Status& reason);
  void Run();
  void EndSilent();

  const uint64_t incarnation_;
  const Tuning tuning_;
  ReceiveTable* const table_;
  const std::shared_ptr<Rails> rails_;
  const std::shared_ptr<MemoryTable> memory_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::thread thread_;

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::CondVar idle_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
  struct Channel {
    std::shared_ptr<Session> session;
    size_t rail = 0;
  };
  absl::flat_hash_map<int, Channel> channels_ ABSL_GUARDED_BY(mu_);  // by descriptor
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_RECEIVER_H_
