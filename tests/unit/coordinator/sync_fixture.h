// A runner over a small job (two trainers on node t, engine 0 on node e0, engine 1 on node e1) and
// fake agents.
#ifndef XFER_TESTS_UNIT_COORDINATOR_SYNC_FIXTURE_H_
#define XFER_TESTS_UNIT_COORDINATOR_SYNC_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/sync/sync_runner.h"
#include "tests/unit/coordinator/fake_agents.h"
#include "tests/unit/coordinator/small_job.h"

namespace xfer {

class SyncFixture : public ::testing::Test {
 protected:
  SyncFixture()
      : store_(*Store::Open("")),
        registry_([this](const std::string& job, const RankEntry& rank,
                         const std::string& reason) { runner_->OnRankGone(job, rank, reason); },
                  store_.get()),
        plans_(Clock::Real(), 2, [this](const CachedPlan& plan) {
          ledger_.Forget(plan.id);
          agents_.ForgetPlan("", plan.id);
        }) {
    SyncContext context;
    context.clock = Clock::Real();
    context.gateway = &agents_;
    context.registry = &registry_;
    context.plans = &plans_;
    context.ledger = &ledger_;
    context.peer_of = [](const std::string& node, uint64_t incarnation) {
      v1::Peer peer;
      peer.set_node(node);
      peer.set_incarnation(incarnation);
      return peer;
    };
    SyncRunner::Options options;
    options.resume_grace = absl::Milliseconds(300);
    options.max_running = 4;
    runner_ = std::make_unique<SyncRunner>(context, store_.get(), options);
    agents_.SetRunner(runner_.get());
    for (const char* node : {"t", "e0", "e1"}) registry_.AdmitNode(node, 7, 1);
    EXPECT_TRUE(registry_.InsertJob("job", "{}", SmallSpec(2, 2, 2), SmallTable()).ok());
    for (int t = 0; t < 2; ++t) Publish(SmallTrainer(t, 2, "t"));
    for (int r = 0; r < 2; ++r) {
      Publish(SmallRollout(0, r, 2, "e0"));
      Publish(SmallRollout(1, r, 2, "e1"));
    }
  }
  ~SyncFixture() override { runner_.reset(); }

  void Publish(RankEntry rank) {
    agents_.AddRank(rank.node, rank.id);
    const auto generation = registry_.PublishRank("job", std::move(rank));
    ASSERT_TRUE(generation.ok()) << generation.status();
  }

  v1::TriggerSyncRequest Request(int64_t deadline_ms = 10'000) {
    v1::TriggerSyncRequest request;
    request.set_job("job");
    request.set_deadline_ms(deadline_ms);
    return request;
  }

  // Waits for the end of a sync, at most 20 s.
  v1::Sync Wait(uint64_t id) {
    const std::shared_ptr<SyncRecord> record = *runner_->history().Find(id);
    absl::Mutex mu;
    absl::CondVar changed;
    const uint64_t watch = record->watchers().Add([&] {
      absl::MutexLock lock(&mu);
      changed.SignalAll();
    });
    {
      const absl::Time limit = absl::Now() + absl::Seconds(20);
      absl::MutexLock lock(&mu);
      while (!record->ended() && !changed.WaitWithDeadline(&mu, limit)) {
      }
      EXPECT_TRUE(record->ended());
    }
    record->watchers().Remove(watch);
    return record->Snapshot();
  }
  v1::Sync Run(const v1::TriggerSyncRequest& request) {
    const absl::StatusOr<uint64_t> id = runner_->Trigger(request);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok() ? Wait(*id) : v1::Sync();
  }
  v1::Sync Run() { return Run(Request()); }
  v1::EngineInfo Engine(int32_t engine) { return (*registry_.ListEngines("job"))[engine]; }

  ConnectLedger ledger_;
  FakeAgents agents_;
  std::unique_ptr<Store> store_;
  Registry registry_;
  PlanCache plans_;
  std::unique_ptr<SyncRunner> runner_;
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COORDINATOR_SYNC_FIXTURE_H_
