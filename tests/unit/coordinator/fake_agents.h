// Agents as a sync sees them: they answer at once, unless a test has them do otherwise.
#ifndef XFER_TESTS_UNIT_COORDINATOR_FAKE_AGENTS_H_
#define XFER_TESTS_UNIT_COORDINATOR_FAKE_AGENTS_H_

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "coordinator/sync/gateway.h"
#include "coordinator/sync/sync_runner.h"

namespace xfer {

inline v1::RankOutcome OutcomeOf(const RankId& id, const absl::Status& status) {
  v1::RankOutcome outcome;
  *outcome.mutable_id() = ToProto(id);
  *outcome.mutable_outcome() = ToOutcome(status);
  return outcome;
}

// Thread-safe.
class FakeAgents : public AgentGateway {
 public:
  // What a node says to a step; nullopt: nothing. `good` is what it would say if all went well.
  using Behaviour = std::function<std::optional<v1::StepResult>(
      const std::string& node, const v1::Step& step, v1::StepResult good)>;

  void SetRunner(SyncRunner* runner) { runner_ = runner; }
  void AddRank(const std::string& node, const RankId& id) {
    absl::MutexLock lock(&mu_);
    ranks_[node].push_back(id);
    sessions_.emplace(node, 1);
  }
  void Behave(Behaviour behaviour) {
    absl::MutexLock lock(&mu_);
    behaviour_ = std::move(behaviour);
  }
  void CloseSession(const std::string& node) {
    absl::MutexLock lock(&mu_);
    sessions_[node] = 0;
  }
  void OpenSession(const std::string& node, uint64_t session) {
    absl::MutexLock lock(&mu_);
    sessions_[node] = session;
  }

  absl::StatusOr<uint64_t> SendStep(const std::string& node, uint64_t,
                                    const v1::Step& step) override {
    std::optional<v1::StepResult> result;
    uint64_t session = 0;
    Behaviour behaviour;
    v1::StepResult good;
    {
      absl::MutexLock lock(&mu_);
      session = sessions_[node];
      if (session == 0) return absl::UnavailableError(absl::StrCat("node ", node, ": no session"));
      steps_.emplace_back(node, step);
      good = Good(node, step);
      behaviour = behaviour_;
    }
    result = behaviour ? behaviour(node, step, good) : good;
    if (result.has_value()) runner_->OnStepResult(node, 7, *result);
    return session;
  }
  void EndSync(const std::string& node, uint64_t, uint64_t sync_id,
               const std::string& reason) override {
    absl::MutexLock lock(&mu_);
    ended_[{node, sync_id}] = reason;
  }
  void ForgetPlan(const std::string&, uint64_t plan_id) override {
    absl::MutexLock lock(&mu_);
    forgotten_.insert(plan_id);
  }
  uint64_t SessionOf(const std::string& node, uint64_t) override {
    absl::MutexLock lock(&mu_);
    return sessions_[node];
  }

  // Steps sent since the last call, as "KIND node", sorted within a kind.
  std::vector<std::string> TakeLog() {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> log;
    std::set<std::string> nodes;
    for (size_t i = 0; i < steps_.size(); ++i) {
      nodes.insert(steps_[i].first);
      const v1::StepKind kind = steps_[i].second.kind();
      if (i + 1 < steps_.size() && steps_[i + 1].second.kind() == kind) continue;
      log.push_back(
          absl::StrCat(v1::StepKind_Name(kind).substr(10), " ", absl::StrJoin(nodes, " ")));
      nodes.clear();
    }
    steps_.clear();
    return log;
  }
  std::optional<v1::Step> Find(const std::string& node, v1::StepKind kind) {
    absl::MutexLock lock(&mu_);
    for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
      if (it->first == node && it->second.kind() == kind) return it->second;
    }
    return std::nullopt;
  }
  std::map<std::pair<std::string, uint64_t>, std::string> ended() {
    absl::MutexLock lock(&mu_);
    return ended_;
  }
  std::set<uint64_t> forgotten() {
    absl::MutexLock lock(&mu_);
    return forgotten_;
  }

 private:
  v1::StepResult Good(const std::string& node, const v1::Step& step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::StepResult good;
    good.set_sync_id(step.sync_id());
    good.set_kind(step.kind());
    if (step.kind() != v1::STEP_KIND_TRANSFER) return good;
    const int64_t now = Clock::Real()->MonotonicNanos();
    good.set_first_byte_ns(now);
    good.set_last_byte_ns(now + 1000);
    for (const RankId& id : ranks_[node]) {
      if (id.role == Role::kRollout) *good.add_ranks() = OutcomeOf(id, absl::OkStatus());
      v1::RankTiming* timing = good.add_timings();
      *timing->mutable_id() = ToProto(id);
      timing->set_bytes(100);
      timing->set_start_ns(now);
      timing->set_end_ns(now + 1000);
    }
    return good;
  }

  SyncRunner* runner_ = nullptr;
  absl::Mutex mu_;
  std::map<std::string, std::vector<RankId>> ranks_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, uint64_t> sessions_ ABSL_GUARDED_BY(mu_);
  Behaviour behaviour_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<std::string, v1::Step>> steps_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, uint64_t>, std::string> ended_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> forgotten_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COORDINATOR_FAKE_AGENTS_H_
