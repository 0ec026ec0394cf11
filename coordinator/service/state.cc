#include "coordinator/service/state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {
constexpr size_t kPlansKept = 8;
}  // namespace

CoordinatorState::CoordinatorState(const Coordinator::Options& opts, std::unique_ptr<Store> opened)
    : options(opts),
      store(std::move(opened)),
      plans(opts.clock, kPlansKept,
            [this](const CachedPlan& plan) {
              ledger.Forget(plan.id);
              for (const std::string& node : plan.nodes) sessions.ForgetPlan(node, plan.id);
            }),
      models(store.get()),
      registry([this](const std::string& job, const RankEntry& rank,
                      const std::string& reason) { syncs.OnRankGone(job, rank, reason); },
               store.get()),
      membership({opts.clock, opts.lease, TickOf(opts.lease)}, this),
      syncs({opts.clock, &sessions, &registry, &plans, &ledger,
             [this](const std::string& node, uint64_t incarnation) {
               return PeerOf(node, incarnation);
             },
             nullptr, nullptr},
            store.get(), SyncRunner::Options()) {}

absl::Status CoordinatorState::Restore() {
  XFER_RETURN_IF_ERROR(models.Restore());
  XFER_RETURN_IF_ERROR(registry.Restore());
  return syncs.Restore();
}

void CoordinatorState::OnNodeJoined(const NodeHello& hello) {
  registry.AdmitNode(hello.name, hello.incarnation, hello.nics);
}

void CoordinatorState::OnSessionBroken(const std::string& node, uint64_t incarnation,
                                       const std::string& reason) {
  syncs.OnSessionBroken(node, incarnation, reason);
}

void CoordinatorState::OnNodeLost(const std::string& node, uint64_t incarnation,
                                  const std::string& reason) {
  // The syncs first: they then name the lost node as the cause, not the ranks that go with it.
  syncs.OnNodeLost(node, incarnation, reason);
  registry.DropNode(node, incarnation, reason);
  ledger.ForgetNode(node);
}

void CoordinatorState::CloseSession(uint64_t session, const absl::Status& why) {
  sessions.Close(session, why);
}

absl::StatusOr<v1::Peer> CoordinatorState::PeerOf(const std::string& node,
                                                  uint64_t incarnation) const {
  XFER_ASSIGN_OR_RETURN(const NodeView view, membership.Find(node));
  if (view.state == NodeState::kLost || view.hello.incarnation != incarnation) {
    return absl::UnavailableError(absl::StrCat("node ", node, " is not alive any more"));
  }
  v1::Peer peer;
  peer.set_node(node);
  peer.set_incarnation(incarnation);
  peer.set_peer_address(view.hello.peer_address);
  peer.set_data_address(view.hello.data_address);
  return peer;
}

}  // namespace xfer
