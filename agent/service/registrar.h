// Registers and unregisters the ranks of this node.
#ifndef XFER_AGENT_SERVICE_REGISTRAR_H_
#define XFER_AGENT_SERVICE_REGISTRAR_H_

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/exec/thread_pool.h"
#include "agent/memory/fd_receiver.h"
#include "agent/memory/rank_table.h"
#include "agent/service/coordinator_session.h"
#include "agent/service/job_models.h"
#include "agent/service/rank_sessions.h"
#include "xfer/v1/agent.pb.h"

namespace xfer {

struct RegistrarOptions {
  std::string node;
  int32_t nics = 1;
  // A registration whose process opens no session for so long is dropped: nobody would notice its
  // end.
  absl::Duration attach_time = absl::Seconds(30);
};

// Thread-safe.
class Registrar final : public RankSessionListener {
 public:
  // Pointers are borrowed. `on_gone` is called with each rank that was removed.
  Registrar(RegistrarOptions options, RankTable* ranks, FdReceiver* fds,
            CoordinatorSession* coordinator, std::function<void(const LocalRank&)> on_gone);
  ~Registrar() override;

  // Ends threads that may call into other parts. Ranks stay registered.
  void Stop();
  void SetSessions(RankSessions* sessions) { sessions_ = sessions; }  // before the first call

  // The rank is known to the coordinator when it returns OK. With `update` it takes the place of
  // registration header.registration_id().
  absl::StatusOr<v1::RegisterRankReply> Register(const v1::RankHeader& header,
                                                 std::vector<TensorPlacement> tensors, bool update);
  // Unregisters; no effect where there is no such registration. Memory is unmapped in the
  // background once nothing uses it.
  void Remove(uint64_t registration_id, const std::string& reason);

  // RankSessionListener
  absl::Status OnAttach(uint64_t registration_id) override;
  void OnReady(uint64_t registration_id, int64_t version) override;
  void OnVerdict(uint64_t registration_id, const v1::OwnerVerdict& verdict) override;
  void OnSessionEnd(uint64_t registration_id, const std::string& reason) override;

 private:
  absl::StatusOr<std::vector<MappedRegion>> MapRegions(const v1::RankHeader& header);
  absl::StatusOr<RankPin> Add(const v1::RankHeader& header, LocalRankInfo info,
                              std::vector<MappedRegion> regions, bool update);
  // Tells the coordinator; again, for as long as it says that it has no session with this agent.
  absl::StatusOr<uint64_t> Publish(const LocalRank& rank, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Gone(RankPin rank, const std::string& reason, bool tell_coordinator);
  void WatchAttach(uint64_t registration_id);
  void DropUnattached();

  struct Unattached {
    uint64_t registration_id;
    absl::Time limit;
  };

  const RegistrarOptions options_;
  RankTable* const ranks_;
  FdReceiver* const fds_;
  CoordinatorSession* const coordinator_;
  const std::function<void(const LocalRank&)> on_gone_;
  RankSessions* sessions_ = nullptr;
  JobModels models_;
  ThreadPool unmapper_{1};  // unmapping a large region takes long

  absl::Mutex mu_;
  absl::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Unattached> unattached_ ABSL_GUARDED_BY(mu_);  // by limit
  std::thread janitor_;
};

}  // namespace xfer

#endif  // XFER_AGENT_SERVICE_REGISTRAR_H_
