#include "coordinator/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "common/rpc/server.h"
#include "coordinator/service/agent_hub.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/state.h"

namespace xfer {
namespace {

constexpr absl::Duration kMinLease = absl::Milliseconds(50);
constexpr absl::Duration kMaxLease = absl::Hours(1);
// For calls in flight to end by themselves, once sessions and syncs are over.
constexpr absl::Duration kServerGrace = absl::Milliseconds(300);

absl::Status Check(const Coordinator::Options& options) {
  if (options.lease < kMinLease || options.lease > kMaxLease) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease of ", absl::FormatDuration(options.lease), " is not between ",
                     absl::FormatDuration(kMinLease), " and ", absl::FormatDuration(kMaxLease)));
  }
  if (options.heartbeat < absl::Milliseconds(1) || options.heartbeat * 2 > options.lease) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a heartbeat every ", absl::FormatDuration(options.heartbeat), " does not fit a lease of ",
        absl::FormatDuration(options.lease), ": it must come at least twice within it"));
  }
  return absl::OkStatus();
}

}  // namespace

class Coordinator::Impl {
 public:
  Impl(const Options& options, std::unique_ptr<Store> store)
      : state_(options, std::move(store)), coordinator_(&state_), hub_(&state_) {}
  ~Impl() { Shutdown(absl::ZeroDuration()); }

  absl::Status Start() {
    XFER_RETURN_IF_ERROR(state_.Restore());
    RpcServerOptions options;
    options.address = state_.options.listen;
    options.insecure = state_.options.insecure;
    options.services = {&coordinator_, &hub_};
    XFER_ASSIGN_OR_RETURN(server_, RpcServer::Start(options));
    ticker_ = std::thread([this] { Tick(); });
    return absl::OkStatus();
  }

  int port() const { return server_->port(); }

  void Shutdown(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_) {
    if (server_ == nullptr) return;  // never started
    {
      absl::MutexLock lock(&mu_);
      if (std::exchange(down_, true)) return;
    }
    spdlog::info("ending: running syncs are cancelled, their engines get {} to resume",
                 absl::FormatDuration(grace));
    state_.syncs.Shutdown(absl::UnavailableError("the coordinator is ending"), grace);
    state_.sessions.CloseAll(absl::UnavailableError("the coordinator is ending"));
    server_->Shutdown(kServerGrace);
    {
      absl::MutexLock lock(&mu_);
      stop_ticker_ = true;
      wake_ticker_.SignalAll();
    }
    ticker_.join();
  }

 private:
  // Leases are judged by the injected clock; how often, by the real one.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Duration interval = TickOf(state_.options.lease);
    absl::MutexLock lock(&mu_);
    while (!stop_ticker_) {
      wake_ticker_.WaitWithTimeout(&mu_, interval);
      if (stop_ticker_) return;
      mu_.Unlock();
      state_.membership.Tick();
      mu_.Lock();
    }
  }

  CoordinatorState state_;
  CoordinatorService coordinator_;
  AgentHubService hub_;
  std::unique_ptr<RpcServer> server_;
  std::thread ticker_;
  absl::Mutex mu_;
  absl::CondVar wake_ticker_;
  bool down_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ticker_ ABSL_GUARDED_BY(mu_) = false;
};

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() = default;

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(const Options& options) {
  XFER_RETURN_IF_ERROR(Check(options));
  XFER_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, Store::Open(options.state));
  auto impl = std::make_unique<Impl>(options, std::move(store));
  XFER_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(impl)));
}

int Coordinator::port() const { return impl_->port(); }

void Coordinator::Shutdown(absl::Duration grace) { impl_->Shutdown(grace); }

}  // namespace xfer
