#include "coordinator/sync/sync_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/rpc/status.h"
#include "coordinator/registry/names.h"

namespace xfer {
namespace {

constexpr absl::Duration kMaxDeadline = absl::Hours(24);
constexpr absl::Duration kDefaultDeadline = absl::Seconds(300);  // where the model names none
constexpr std::array<absl::string_view, 4> kTransports = {"", "local", "verbs", "tcp"};

absl::StatusOr<SyncOptions> OptionsOf(const v1::TriggerSyncRequest& request) {
  SyncOptions options;
  if (request.mode() == v1::MODE_BROADCAST) {
    return absl::UnimplementedError("mode broadcast is not implemented; use mode p2p");
  }
  if (request.mode() != v1::MODE_UNSPECIFIED && request.mode() != v1::MODE_P2P) {
    return absl::InvalidArgumentError(
        absl::StrCat("mode ", request.mode(), " is unknown; use p2p (", v1::MODE_P2P, ")"));
  }
  switch (request.verify()) {
    case v1::VERIFY_UNSPECIFIED:
      break;
    case v1::VERIFY_FULL:
    case v1::VERIFY_SAMPLE:
    case v1::VERIFY_NONE:
      options.verify = request.verify();
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("verify ", request.verify(), " is unknown; use full, sample or none"));
  }
  if (std::find(kTransports.begin(), kTransports.end(), request.transport()) == kTransports.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transport \"", Shorten(request.transport(), 32),
        "\" is unknown; use local, verbs, tcp, or none to have it chosen for each pair"));
  }
  options.transport = request.transport();
  if (request.deadline_ms() < 0 ||
      request.deadline_ms() > absl::ToInt64Milliseconds(kMaxDeadline)) {
    return absl::InvalidArgumentError(
        absl::StrCat("deadline ", request.deadline_ms(), " ms is not between 0 and 24 hours"));
  }
  options.deadline = absl::Milliseconds(request.deadline_ms());
  return options;
}

}  // namespace

SyncRunner::SyncRunner(const SyncContext& context, Store* store, const Options& options)
    : context_(context),
      store_(store),
      options_(options),
      history_(options.history, options.history_with_timings) {
  context_.another_id = [this](uint64_t sync_id) { return AnotherId(sync_id); };
  context_.store_sync = [this](const v1::Sync& sync) {
    return store_->SaveSync(sync, options_.history);
  };
}

SyncRunner::~SyncRunner() {
  Shutdown(absl::CancelledError("the coordinator is ending"), absl::Seconds(2));
}

absl::Status SyncRunner::Restore() {
  XFER_ASSIGN_OR_RETURN(std::vector<v1::Sync> syncs, store_->Syncs(options_.history));
  XFER_ASSIGN_OR_RETURN(const uint64_t next_id, store_->NextSyncId());
  for (v1::Sync& sync : syncs) {
    if (sync.state() == v1::SYNC_STATE_RUNNING) {
      sync.set_state(v1::SYNC_STATE_FAILED);
      *sync.mutable_outcome() = ToOutcome(absl::AbortedError(
          "the coordinator ended while it ran; see which engines are dirty, and sync again"));
      XFER_RETURN_IF_ERROR(store_->SaveSync(sync, options_.history));
    }
    history_.Add(std::make_shared<SyncRecord>(std::move(sync), /*trigger_ns=*/0));
  }
  absl::MutexLock lock(&mu_);
  next_id_ = next_id;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SyncRunner::Trigger(const v1::TriggerSyncRequest& request) {
  const int64_t trigger_ns = context_.clock->MonotonicNanos();
  XFER_ASSIGN_OR_RETURN(SyncOptions options, OptionsOf(request));
  options.resume_grace = options_.resume_grace;
  std::vector<std::jthread> finished;  // joined when it goes, after the lock, on every way out
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("the coordinator is ending; try again later");
  finished.swap(finished_);
  if (running_.size() >= options_.max_running) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.max_running, " syncs are running, which is the limit; wait for one to end"));
  }
  return Start(request, std::move(options), trigger_ns);
}

absl::StatusOr<uint64_t> SyncRunner::Start(const v1::TriggerSyncRequest& request,
                                           SyncOptions options, int64_t trigger_ns) {
  const uint64_t id = next_id_;
  const std::vector<int32_t> engines(request.engines().begin(), request.engines().end());
  XFER_ASSIGN_OR_RETURN(
      SyncInput input, context_.registry->BeginSync(request.job(), engines, request.version(), id));
  if (request.deadline_ms() == 0) {
    options.deadline =
        input.transfer_timeout_s > 0 ? absl::Seconds(input.transfer_timeout_s) : kDefaultDeadline;
  }
  v1::Sync initial;
  initial.set_id(id);
  initial.set_job(input.job);
  initial.set_version(input.version);
  initial.set_mode(v1::MODE_P2P);
  initial.set_verify(options.verify);
  initial.set_state(v1::SYNC_STATE_RUNNING);
  initial.set_phase(v1::PHASE_PLAN);
  initial.set_start_unix_ms(absl::ToUnixMillis(context_.clock->Wall()));
  for (int32_t e : input.engines) initial.add_engines()->set_engine(e);
  if (absl::Status stored = context_.store_sync(initial); !stored.ok()) {
    context_.registry->EndSync(input.job, input.engines, id);
    return Annotate(stored, "the sync was not started");
  }
  ++next_id_;
  auto record = std::make_shared<SyncRecord>(std::move(initial), trigger_ns);
  history_.Add(record);
  auto task = std::make_shared<SyncTask>(context_, std::move(input), options, std::move(record));
  Running& running = running_[id];
  running.task = task;
  running.thread = std::jthread([this, task, id] {
    task->Run();
    Done(id);
  });
  return id;
}

void SyncRunner::Done(uint64_t sync_id) {
  absl::MutexLock lock(&mu_);
  auto it = running_.find(sync_id);
  finished_.push_back(std::move(it->second.thread));
  running_.erase(it);
  ended_.SignalAll();
}

absl::StatusOr<v1::Sync> SyncRunner::Cancel(uint64_t sync_id, const absl::Status& why) {
  XFER_ASSIGN_OR_RETURN(std::shared_ptr<SyncRecord> record, history_.Find(sync_id));
  if (std::shared_ptr<SyncTask> task = Find(record->id()); task != nullptr) {
    spdlog::info("sync {}: cancelled: {}", record->id(), std::string(why.message()));
    task->Cancel(why, options_.resume_grace);
  }
  return record->Snapshot();
}

void SyncRunner::Shutdown(const absl::Status& why, absl::Duration grace) {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (const auto& task : All()) task->Cancel(why, grace);
  std::vector<std::jthread> finished;
  {
    absl::MutexLock lock(&mu_);
    // Bounded: every sync ends by its deadlines, which have just been moved.
    while (!running_.empty()) ended_.Wait(&mu_);
    finished.swap(finished_);
  }
  for (std::jthread& thread : finished) thread.join();
}

std::shared_ptr<SyncTask> SyncRunner::Find(uint64_t sync_id) const {
  absl::MutexLock lock(&mu_);
  auto it = running_.find(Resolve(sync_id));
  return it == running_.end() ? nullptr : it->second.task;
}

uint64_t SyncRunner::Resolve(uint64_t agents_id) const {
  auto it = other_ids_.find(agents_id);
  return it == other_ids_.end() ? agents_id : it->second;
}

uint64_t SyncRunner::AnotherId(uint64_t sync_id) {
  absl::MutexLock lock(&mu_);
  const uint64_t id = next_id_++;
  if (absl::Status stored = store_->SaveNextSyncId(next_id_); !stored.ok()) {
    spdlog::error("sync {}: {}", sync_id, std::string(stored.message()));
  }
  other_ids_[id] = sync_id;
  while (other_ids_.size() > options_.history) other_ids_.erase(other_ids_.begin());
  return id;
}

absl::Status SyncRunner::AddTimings(const v1::TransferTimings& timings) {
  uint64_t id = 0;
  {
    absl::MutexLock lock(&mu_);
    id = Resolve(timings.sync_id());
  }
  // 0 would be the newest.
  if (id == 0) return absl::InvalidArgumentError("sync 0 is none: timings name their sync");
  XFER_ASSIGN_OR_RETURN(std::shared_ptr<SyncRecord> record, history_.Find(id));
  return record->AddTimings(timings.node(), timings);
}

SyncRunner::Tasks SyncRunner::All() const {
  absl::MutexLock lock(&mu_);
  Tasks tasks;
  for (const auto& [id, running] : running_) tasks.push_back(running.task);
  return tasks;
}

void SyncRunner::OnStepResult(const std::string& node, uint64_t incarnation,
                              const v1::StepResult& result) {
  if (auto task = Find(result.sync_id()); task != nullptr) {
    task->OnStepResult(node, incarnation, result);
  }
}

void SyncRunner::OnProgress(const std::string& node, const v1::Progress& progress) {
  if (auto task = Find(progress.sync_id()); task != nullptr) {
    task->OnProgress(node, progress.bytes_done());
  }
}

void SyncRunner::OnSessionOpened(const std::string& node, uint64_t incarnation) {
  for (const auto& task : All()) task->OnSessionOpened(node, incarnation);
}

void SyncRunner::OnSessionBroken(const std::string& node, uint64_t incarnation,
                                 const std::string& reason) {
  for (const auto& task : All()) task->OnSessionBroken(node, incarnation, reason);
}

void SyncRunner::OnNodeLost(const std::string& node, uint64_t incarnation,
                            const std::string& reason) {
  for (const auto& task : All()) task->OnNodeLost(node, incarnation, reason);
}

void SyncRunner::OnRankGone(const std::string& job, const RankEntry& rank,
                            const std::string& reason) {
  for (const auto& task : All()) task->OnRankGone(job, rank, reason);
}

}  // namespace xfer
