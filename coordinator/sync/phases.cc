// SyncTask: the phases, in their order.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "coordinator/sync/sync_task.h"

namespace xfer {
namespace {

// TRANSFER ends a little before the sync must, so that engines whose bytes are in place can still
// commit when another engine hangs: a tenth of the deadline, and at most this.
constexpr absl::Duration kMaxCommitReserve = absl::Seconds(5);

// Agents are told to answer a little earlier than the coordinator stops listening: their answer
// names the transfer that failed, silence names only the node.
int64_t DeadlineForAgent(int64_t remaining_ns) {
  const int64_t margin_ns = std::min<int64_t>(250'000'000, remaining_ns / 20);
  return std::max<int64_t>(1, (remaining_ns - margin_ns) / 1'000'000);
}

}  // namespace

void SyncTask::Run() {
  FailOutdated();
  if (Prepare()) {
    Transfer();
    Commit();
  }
  MarkFailedDirty();
  Resume();
  Finish();
}

// Ranks that went between the freezing of the input and the first event.
void SyncTask::FailOutdated() {
  for (const RankId& id : context_.registry->Outdated(input_)) {
    const auto rank = std::find_if(input_.ranks.begin(), input_.ranks.end(),
                                   [&](const RankEntry& r) { return r.id == id; });
    OnRankGone(input_.job, *rank, "it went as the sync began");
  }
}

bool SyncTask::Prepare() {
  const auto live = [this] {
    absl::MutexLock lock(&mu_);
    return LiveEngines();
  };
  while (true) {
    const EngineSet engines = live();
    if (engines.empty()) return false;
    if (absl::Status status = MakePlan(engines); !status.ok()) {
      absl::MutexLock lock(&mu_);
      FailAll(status);
      return false;
    }
    Connect();
    if (live() == engines) {
      Pause();
      if (live() == engines) return true;
    }
    if (live().empty()) return false;
    StartAgain();  // this plan moves bytes to an engine that has dropped out
  }
}

void SyncTask::StartAgain() {
  std::string reason;
  {
    absl::MutexLock lock(&mu_);
    reason = absl::StrCat("started again without an engine that dropped out: ",
                          first_failure_.message());
  }
  spdlog::warn("sync {}: {}", id_, reason);
  if (!paused_.empty()) SendResume(/*last=*/false);
  EndOnAgents(reason);
  paused_.clear();
  told_.clear();
  const uint64_t agents_id = context_.another_id(id_);
  absl::MutexLock lock(&mu_);
  agents_id_ = agents_id;
}

void SyncTask::EndOnAgents(const std::string& reason) {
  std::map<std::string, uint64_t> nodes;
  uint64_t agents_id = 0;
  {
    absl::MutexLock lock(&mu_);
    agents_id = agents_id_;
    for (const std::string& name : told_) nodes[name] = nodes_.at(name).incarnation;
  }
  for (const auto& [node, incarnation] : nodes) {
    context_.gateway->EndSync(node, incarnation, agents_id, reason);
  }
}

absl::Status SyncTask::MakePlan(const EngineSet& engines) {
  const int64_t start = Now();
  EnterPhase(v1::PHASE_PLAN);
  absl::StatusOr<PlanCache::Found> found = absl::InternalError("not planned");
  if (engines == input_.engines) {
    found = context_.plans->Get(input_);
  } else {
    SyncInput subset = input_;
    subset.engines = engines;
    std::erase_if(subset.ranks, [&](const RankEntry& rank) {
      return rank.id.role == Role::kRollout &&
             !std::binary_search(engines.begin(), engines.end(), rank.id.engine);
    });
    found = context_.plans->Get(subset);
  }
  AddPhase(v1::PHASE_PLAN, start, Now());
  if (!found.ok()) return found.status();
  const CachedPlan& plan = *found->plan;
  record_->SetNames(plan.names);
  record_->Update([&](v1::Sync& sync) {
    sync.set_plan_id(plan.id);
    sync.set_plan_cached(found->cached);
    sync.set_bytes_total(plan.plan.stats.bytes);
    *sync.mutable_plan() = ToProto(plan.plan.stats, plan.plan.transfers.size());
  });
  absl::MutexLock lock(&mu_);
  plan_ = std::move(found->plan);
  return absl::OkStatus();
}

std::map<std::string, std::vector<RankId>> SyncTask::Participants(bool trainers) const {
  absl::MutexLock lock(&mu_);
  std::map<std::string, std::vector<RankId>> out;
  for (const RankEntry& rank : input_.ranks) {
    const bool takes_part =
        rank.id.role == Role::kTrainer ? trainers : engines_.at(rank.id.engine).live();
    if (takes_part) out[rank.node].push_back(rank.id);
  }
  return out;
}

v1::Step SyncTask::BaseStep(v1::StepKind kind, int64_t deadline_ns) const {
  v1::Step step;
  step.set_kind(kind);
  step.set_job(input_.job);
  step.set_deadline_ms(DeadlineForAgent(deadline_ns - Now()));
  step.set_version(input_.version);
  step.set_secret(secret_);
  step.set_verify(options_.verify);
  step.set_transport(options_.transport);
  absl::MutexLock lock(&mu_);
  step.set_sync_id(agents_id_);
  if (plan_ != nullptr) step.set_plan_id(plan_->id);
  return step;
}

void SyncTask::Connect() {
  const int64_t start = Now();
  EnterPhase(v1::PHASE_CONNECT);
  std::shared_ptr<const CachedPlan> plan;
  std::map<std::string, uint64_t> incarnations;
  int64_t deadline = 0;
  {
    absl::MutexLock lock(&mu_);
    plan = plan_;
    deadline = deadline_ns_;
    for (const auto& [name, node] : nodes_) incarnations[name] = node.incarnation;
  }
  Steps steps;
  for (const auto& [node, ranks] : Participants(/*trainers=*/true)) {
    const uint64_t session = context_.gateway->SessionOf(node, incarnations[node]);
    if (context_.ledger->Acked(node, session, plan->id, options_.transport)) continue;
    v1::Step step = BaseStep(v1::STEP_KIND_CONNECT, deadline);
    if (auto receivers = plan->receivers.find(node); receivers != plan->receivers.end()) {
      for (const std::string& receiver : receivers->second) {
        absl::StatusOr<v1::Peer> peer = context_.peer_of(receiver, incarnations[receiver]);
        // A peer that has gone is charged by its own step.
        if (peer.ok()) *step.add_peers() = *std::move(peer);
      }
    }
    steps[node] = std::move(step);
  }
  if (!steps.empty()) {
    for (const auto& [node, reply] : RunStep(v1::STEP_KIND_CONNECT, std::move(steps), deadline)) {
      if (reply.status.ok() && reply.result.outcome().code() == 0) {
        context_.ledger->Ack(node, reply.session, plan->id, options_.transport);
      }
    }
  }
  AddPhase(v1::PHASE_CONNECT, start, Now());
}

void SyncTask::Pause() {
  const int64_t start = Now();
  EnterPhase(v1::PHASE_PAUSE);
  int64_t deadline = 0;
  {
    absl::MutexLock lock(&mu_);
    deadline = deadline_ns_;
  }
  Steps steps;
  for (const auto& [node, ranks] : Participants(/*trainers=*/true)) {
    v1::Step step = BaseStep(v1::STEP_KIND_PAUSE, deadline);
    for (const RankId& id : ranks) {
      *step.add_ranks() = ToProto(id);
      paused_[node].insert(id);
    }
    steps[node] = std::move(step);
  }
  RunStep(v1::STEP_KIND_PAUSE, std::move(steps), deadline);
  AddPhase(v1::PHASE_PAUSE, start, Now());
}

void SyncTask::Transfer() {
  EngineSet engines;
  int64_t deadline = 0;
  {
    absl::MutexLock lock(&mu_);
    engines = LiveEngines();
    const absl::Duration reserve = std::min(options_.deadline / 10, kMaxCommitReserve);
    deadline = deadline_ns_ - absl::ToInt64Nanoseconds(reserve);
  }
  // Before the first byte: whatever happens from here on, nobody takes them for what they were.
  std::map<int32_t, std::string> reasons;
  for (int32_t e : engines) {
    reasons[e] =
        absl::StrCat("sync ", id_, " to version ", input_.version, " has begun to write to it");
  }
  const absl::Status marked = context_.registry->MarkDirty(input_.job, reasons);
  {
    absl::MutexLock lock(&mu_);
    if (!marked.ok()) return FailAll(marked);
    for (int32_t e : engines) engines_[e].dirty = engines_[e].touched = true;
  }
  EnterPhase(v1::PHASE_TRANSFER);
  Steps steps;
  for (const auto& [node, ranks] : Participants(/*trainers=*/true)) {
    steps[node] = BaseStep(v1::STEP_KIND_TRANSFER, deadline);
  }
  const int64_t start = Now();
  const Replies replies = RunStep(v1::STEP_KIND_TRANSFER, std::move(steps), deadline);
  const int64_t end = Now();
  {
    absl::MutexLock lock(&mu_);
    reached_ = v1::STEP_KIND_COMMIT;  // trainers are not needed from here on
  }
  RecordTransfer(replies, start, end);
}

void SyncTask::RecordTransfer(const Replies& replies, int64_t start_ns, int64_t end_ns) {
  int64_t first_byte = 0;
  int64_t last_byte = 0;
  uint64_t received = 0;
  std::map<RankId, v1::RankTiming> timings;
  std::map<RankId, std::string> home;
  for (const RankEntry& rank : input_.ranks) home[rank.id] = rank.node;
  for (const auto& [node, reply] : replies) {
    if (!reply.status.ok()) continue;
    const v1::StepResult& result = reply.result;
    if (result.first_byte_ns() > 0 && (first_byte == 0 || result.first_byte_ns() < first_byte)) {
      first_byte = result.first_byte_ns();
    }
    last_byte = std::max(last_byte, result.last_byte_ns());
    for (const v1::RankTiming& reported : result.timings()) {
      const absl::StatusOr<RankId> id = FromProto(reported.id());
      if (!id.ok()) continue;
      const auto rank = home.find(*id);
      if (rank == home.end() || rank->second != node) continue;  // not its to tell
      v1::RankTiming timing = reported;
      timing.set_node(node);
      timing.set_start_ns(reported.start_ns() - record_->trigger_ns());
      timing.set_end_ns(reported.end_ns() - record_->trigger_ns());
      if (id->role == Role::kRollout) received += timing.bytes();
      timings[*id] = std::move(timing);
    }
  }
  // Clocks of agents are known to their estimate's error only: the phase stays within what was seen
  // here.
  const int64_t first = first_byte == 0 ? start_ns : std::clamp(first_byte, start_ns, end_ns);
  const int64_t last = last_byte == 0 ? end_ns : std::clamp(last_byte, first, end_ns);
  AddPhase(v1::PHASE_TRANSFER, first, last);
  AddPhase(v1::PHASE_VERIFY, last, end_ns);
  record_->Update([&](v1::Sync& sync) {
    sync.set_phase(v1::PHASE_VERIFY);
    sync.set_bytes_done(std::max(sync.bytes_done(), received));
    for (auto& [id, timing] : timings) *sync.add_ranks() = std::move(timing);
  });
}

void SyncTask::Commit() {
  int64_t deadline = 0;
  {
    absl::MutexLock lock(&mu_);
    if (LiveEngines().empty()) return;
    deadline = deadline_ns_;
  }
  const int64_t start = Now();
  EnterPhase(v1::PHASE_COMMIT);
  Steps steps;
  for (const auto& [node, ranks] : Participants(/*trainers=*/false)) {
    v1::Step step = BaseStep(v1::STEP_KIND_COMMIT, deadline);
    for (const RankId& id : ranks) *step.add_ranks() = ToProto(id);
    steps[node] = std::move(step);
  }
  RunStep(v1::STEP_KIND_COMMIT, std::move(steps), deadline);
  EngineSet engines;
  {
    absl::MutexLock lock(&mu_);
    engines = LiveEngines();
  }
  for (int32_t e : engines) {
    const absl::Status status = context_.registry->Commit(input_, e);
    absl::MutexLock lock(&mu_);
    Engine& engine = engines_[e];
    if (!status.ok()) {
      FailEngine(e, status);
    } else {
      // The registry has it: it is committed even if a failure came in at this very moment.
      engine.committed = true;
      engine.dirty = false;
      engine.status = absl::OkStatus();
    }
    engines_changed_ = true;
  }
  PublishProgress();
  AddPhase(v1::PHASE_COMMIT, start, Now());
}

void SyncTask::MarkFailedDirty() {
  std::map<int32_t, std::string> reasons;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [e, engine] : engines_) {
      if (engine.touched && !engine.committed) {
        reasons[e] = absl::StrCat("sync ", id_, ": ", engine.status.message());
      }
    }
  }
  const absl::Status marked = context_.registry->MarkDirty(input_.job, reasons);
  // They have been dirty since the transfer began; only the reason is an older one.
  if (!marked.ok()) spdlog::error("sync {}: {}", id_, std::string(marked.message()));
}

// `success` speaks for all engines of a node, `failed` for single ranks: an engine that kept its
// old weights is named as failed only where another one beside it holds the new ones.
void SyncTask::SetResumeFate(const std::set<RankId>& ranks, v1::Step& step) const {
  absl::MutexLock lock(&mu_);
  bool any_committed = false;
  bool any_engine = false;
  bool all_committed = true;
  for (const auto& [e, engine] : engines_) all_committed = all_committed && engine.committed;
  for (const RankId& id : ranks) {
    if (id.role != Role::kRollout) continue;
    any_engine = true;
    any_committed = any_committed || engines_.at(id.engine).committed;
  }
  step.set_success(any_engine ? any_committed : all_committed);
  for (const RankId& id : ranks) {
    *step.add_ranks() = ToProto(id);
    if (id.role != Role::kRollout) continue;
    const Engine& engine = engines_.at(id.engine);
    if (engine.dirty || (any_committed && !engine.committed)) *step.add_failed() = ToProto(id);
  }
}

void SyncTask::ChargeResume(const Replies& replies) {
  absl::MutexLock lock(&mu_);
  for (const auto& [node, reply] : replies) {
    absl::Status status = reply.status;
    if (status.ok())
      status = Annotate(FromOutcome(reply.result.outcome()), absl::StrCat("node ", node));
    for (const v1::RankOutcome& rank : reply.result.ranks()) {
      if (!status.ok() || rank.outcome().code() == 0) continue;
      status = Annotate(FromOutcome(rank.outcome()), absl::StrCat("node ", node));
    }
    if (status.ok()) continue;
    status = Annotate(status, "resume");
    spdlog::warn("sync {}: {}", id_, std::string(status.message()));
    if (first_failure_.ok()) first_failure_ = status;
    for (auto& [e, engine] : engines_) {
      if (engine.status.ok() && engine.nodes.contains(node)) engine.status = status;
    }
    engines_changed_ = true;
  }
}

SyncTask::Replies SyncTask::SendResume(bool last) {
  int64_t deadline = 0;
  {
    absl::MutexLock lock(&mu_);
    deadline = last ? resume_deadline_ns_ : deadline_ns_;
  }
  Steps steps;
  for (const auto& [node, ranks] : paused_) {
    v1::Step step = BaseStep(v1::STEP_KIND_RESUME, deadline);
    SetResumeFate(ranks, step);
    steps[node] = std::move(step);
  }
  return RunStep(v1::STEP_KIND_RESUME, std::move(steps), deadline);
}

void SyncTask::Resume() {
  if (paused_.empty()) return;
  const int64_t start = Now();
  EnterPhase(v1::PHASE_RESUME);
  ChargeResume(SendResume(/*last=*/true));
  AddPhase(v1::PHASE_RESUME, start, Now());
}

v1::SyncState SyncTask::EndState() const {
  size_t committed = 0;
  for (const auto& [e, engine] : engines_) committed += engine.committed ? 1 : 0;
  if (committed == engines_.size()) {
    return first_failure_.ok() ? v1::SYNC_STATE_DONE : v1::SYNC_STATE_PARTIAL;
  }
  if (!cancelled_.ok()) return v1::SYNC_STATE_CANCELLED;
  return committed == 0 ? v1::SYNC_STATE_FAILED : v1::SYNC_STATE_PARTIAL;
}

void SyncTask::Finish() {
  v1::SyncState state;
  absl::Status outcome;
  std::vector<v1::EngineResult> engines;
  {
    absl::MutexLock lock(&mu_);
    state = EndState();
    outcome = first_failure_;
    engines = EngineResults();
    if (plan_ != nullptr && state != v1::SYNC_STATE_DONE) context_.ledger->Forget(plan_->id);
  }
  EndOnAgents(std::string(outcome.message()));
  // Before the end is told: whoever sees it may start the next sync at once.
  context_.registry->EndSync(input_.job, input_.engines, id_);
  const int64_t total_ns = Now() - record_->trigger_ns();
  spdlog::info("sync {}: {} after {:.1f} ms: job {}, version {}, engines {}{}{}", id_,
               v1::SyncState_Name(state), static_cast<double>(total_ns) / 1e6, input_.job,
               input_.version, absl::StrJoin(input_.engines, ","), outcome.ok() ? "" : ": ",
               std::string(outcome.message()));
  v1::Sync ended = record_->Snapshot();
  ended.set_state(state);
  *ended.mutable_outcome() = ToOutcome(outcome);
  ended.mutable_engines()->Assign(engines.begin(), engines.end());
  ended.set_total_ns(total_ns);
  // What it did to its engines is stored already; only its record would be missing.
  if (absl::Status stored = context_.store_sync(ended); !stored.ok()) {
    spdlog::error("sync {}: its end is not recorded: {}", id_, std::string(stored.message()));
  }
  record_->Update([&](v1::Sync& sync) { sync = std::move(ended); });
}

void SyncTask::EnterPhase(v1::Phase phase) {
  record_->Update([phase](v1::Sync& sync) { sync.set_phase(phase); });
}

void SyncTask::AddPhase(v1::Phase phase, int64_t start_ns, int64_t end_ns) {
  record_->Update([&](v1::Sync& sync) {
    for (v1::PhaseTiming& timing : *sync.mutable_phases()) {
      if (timing.phase() != phase) continue;  // done again for the engines that were left
      timing.set_duration_ns(timing.duration_ns() + end_ns - start_ns);
      return;
    }
    v1::PhaseTiming* timing = sync.add_phases();
    timing->set_phase(phase);
    timing->set_start_ns(start_ns - record_->trigger_ns());
    timing->set_duration_ns(end_ns - start_ns);
  });
}

}  // namespace xfer
