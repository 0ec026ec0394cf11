// CONNECT: the plan part is here and proved, and endpoints to all peers are open.
#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/exec/executor.h"
#include "common/base/status.h"

namespace xfer {

absl::StatusOr<std::shared_ptr<const PlanPart>> SyncExecutor::FetchPlan(uint64_t plan_id,
                                                                        absl::Time deadline) {
  PlanPartBuilder builder(plan_id, options_.node);
  XFER_RETURN_IF_ERROR(link_->FetchPlan(
      plan_id, deadline, [&](const v1::PlanPart& message) { return builder.Add(message); }));
  return builder.Finish();
}

absl::Status SyncExecutor::EnsureConnected(SyncRun& run, const v1::Step& step,
                                           absl::Time deadline) {
  if (run.receive != nullptr) return absl::OkStatus();
  return Connect(run, step, deadline);
}

absl::Status SyncExecutor::Connect(SyncRun& run, const v1::Step& step, absl::Time deadline) {
  SyncSetup& setup = run.setup;
  {
    absl::MutexLock lock(&mu_);
    for (const v1::Peer& peer : step.peers()) peers_[peer.node()] = peer;
  }
  if (step.secret() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("sync ", step.sync_id(), " has no secret"));
  }
  std::shared_ptr<const PlanPart> part = plans_.Find(step.plan_id());
  const bool fetched = part == nullptr;
  if (fetched) {
    XFER_ASSIGN_OR_RETURN(part, FetchPlan(step.plan_id(), deadline));
  }
  if (part->job != step.job()) {
    return absl::InvalidArgumentError(absl::StrCat("plan ", part->plan_id, " is of job ", part->job,
                                                   ", not of job ", step.job()));
  }
  XFER_ASSIGN_OR_RETURN(setup.pins, PinRanks(*part, *ranks_));
  if (fetched) {
    // Registrations do not change their regions, so what was proved once stays proved.
    XFER_RETURN_IF_ERROR(CheckPart(*part, setup.pins));
    plans_.Put(part);
  }
  setup.key = {step.sync_id(), step.secret()};
  setup.job = step.job();
  setup.version = step.version();
  setup.verify = step.verify() == v1::VERIFY_UNSPECIFIED ? v1::VERIFY_FULL : step.verify();
  setup.part = part;
  XFER_ASSIGN_OR_RETURN(setup.routes, PlanRoutes(*part, step));
  run.Prepare(options_.clock);
  // A rank that went before RankGone() could find it in this sync.
  for (const RankPin& pin : setup.pins) {
    if (pin != nullptr && pin->gone()) run.RankGone(*pin);
  }
  XFER_RETURN_IF_ERROR(run.failures->first());
  return OpenLanes(run, setup.routes, deadline);
}

size_t SyncExecutor::LanesOf(const Transport* transport) const {
  // Another node is fed by several connections of one endpoint; within a node each lane is a thread
  // that takes digests.
  if (transport == nullptr || transport->name() != "local") return 1;
  if (options_.local_lanes > 0) return static_cast<size_t>(options_.local_lanes);
  return std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 4);
}

absl::StatusOr<std::vector<PeerRoute>> SyncExecutor::PlanRoutes(const PlanPart& part,
                                                                const v1::Step& step) {
  std::vector<PeerRoute> routes;
  for (const auto& [node, transfers] : part.sends) {
    PeerRoute& route = routes.emplace_back();
    if (node == options_.node) {
      route.peer = endpoints_->self();
    } else {
      absl::MutexLock lock(&mu_);
      auto peer = peers_.find(node);
      if (peer == peers_.end()) {
        return absl::FailedPreconditionError(
            absl::StrCat("sync ", step.sync_id(), " sends from node ", options_.node, " to node ",
                         node, ", whose address no step has named; connect again"));
      }
      route.peer = peer->second;
    }
    XFER_ASSIGN_OR_RETURN(route.transport, endpoints_->Choose(step.transport(), route.peer));
    route.lanes.resize(std::min(LanesOf(route.transport), transfers.size()));
    std::vector<uint64_t> load(route.lanes.size(), 0);
    for (uint32_t transfer : transfers) {
      const size_t least = std::min_element(load.begin(), load.end()) - load.begin();
      route.lanes[least].transfers.push_back(transfer);
      load[least] += part.transfers[transfer].planned.bytes;
    }
  }
  return routes;
}

absl::Status SyncExecutor::OpenLanes(SyncRun& run, std::vector<PeerRoute>& routes,
                                     absl::Time deadline) {
  struct Opening {
    PeerRoute* route;
    PeerRoute::Lane* lane;
  };
  std::vector<Opening> missing;
  for (PeerRoute& route : routes) {
    for (PeerRoute::Lane& lane : route.lanes) {
      if (route.transport != nullptr) {
        lane.endpoint = endpoints_->TakeIdle(route.peer, *route.transport);
      }
      if (lane.endpoint == nullptr) missing.push_back({&route, &lane});
    }
  }
  if (missing.empty()) return absl::OkStatus();
  // Shared with the tasks, which may outlive a wait that ends early.
  struct Results {
    std::vector<absl::StatusOr<EndpointPool::Opened>> endpoints;
    std::atomic<size_t> left;
  };
  auto results = std::make_shared<Results>();
  results->endpoints.resize(missing.size());
  results->left = missing.size();
  for (size_t i = 0; i < missing.size(); ++i) {
    background_.Submit([this, results, i, deadline, self = run.shared_from_this(),
                        peer = missing[i].route->peer, transport = missing[i].route->transport] {
      if (transport == nullptr) {
        results->endpoints[i] = endpoints_->OpenBest(peer, deadline);
      } else {
        absl::StatusOr<std::unique_ptr<Endpoint>> endpoint =
            endpoints_->Open(peer, *transport, deadline);
        if (endpoint.ok()) {
          results->endpoints[i] = EndpointPool::Opened{transport, *std::move(endpoint)};
        } else {
          results->endpoints[i] = endpoint.status();
        }
      }
      results->left.fetch_sub(1);
      self->Changed();
    });
  }
  if (!run.WaitFor([&] { return results->left.load() == 0; }, deadline)) {
    if (run.stopped()) return run.stop_reason();
    return absl::DeadlineExceededError(
        absl::StrCat(results->left.load(), " of ", missing.size(),
                     " data connections were not open in time, e.g. to node ",
                     missing.front().route->peer.node()));
  }
  absl::Status first;
  for (size_t i = 0; i < missing.size(); ++i) {
    absl::StatusOr<EndpointPool::Opened>& endpoint = results->endpoints[i];
    if (endpoint.ok()) {
      missing[i].route->transport = endpoint->transport;
      missing[i].lane->endpoint = std::move(endpoint->endpoint);
    } else {
      first.Update(
          Annotate(endpoint.status(), absl::StrCat("connecting node ", options_.node, " to node ",
                                                   missing[i].route->peer.node())));
    }
  }
  return first;
}

}  // namespace xfer
