// The parts of a coordinator, wired to each other.
#ifndef XFER_COORDINATOR_SERVICE_STATE_H_
#define XFER_COORDINATOR_SERVICE_STATE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/membership/membership.h"
#include "coordinator/registry/models.h"
#include "coordinator/registry/registry.h"
#include "coordinator/service/session_table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/connect_ledger.h"
#include "coordinator/sync/plan_cache.h"
#include "coordinator/sync/sync_runner.h"

namespace xfer {

// How often leases are judged.
inline absl::Duration TickOf(absl::Duration lease) { return lease / 10; }

// Thread-safe; destroyed when nobody calls any more. No member calls back into one that stands
// below it.
class CoordinatorState final : public MembershipListener {
 public:
  // Nothing happens in it until Restore() has returned.
  CoordinatorState(const Coordinator::Options& options, std::unique_ptr<Store> store);
  absl::Status Restore();

  void OnNodeJoined(const NodeHello& hello) override;
  void OnSessionBroken(const std::string& node, uint64_t incarnation,
                       const std::string& reason) override;
  void OnNodeLost(const std::string& node, uint64_t incarnation,
                  const std::string& reason) override;
  void CloseSession(uint64_t session, const absl::Status& why) override;

 private:
  absl::StatusOr<v1::Peer> PeerOf(const std::string& node, uint64_t incarnation) const;

 public:
  // In the order of construction; the last is destroyed first.
  const Coordinator::Options options;
  const std::unique_ptr<Store> store;
  ConnectLedger ledger;
  SessionTable sessions;
  PlanCache plans;
  Models models;
  Registry registry;
  Membership membership;
  SyncRunner syncs;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SERVICE_STATE_H_
