#include "coordinator/sync/sync_task.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

constexpr int64_t kProgressIntervalNs = 50'000'000;

// Not zero. From the kernel: a data connection is admitted by it.
uint64_t MakeSecret() {
  uint64_t secret = 0;
  while (secret == 0) {
    if (getrandom(&secret, sizeof(secret), 0) == sizeof(secret)) continue;
    secret = absl::Uniform<uint64_t>(absl::BitGen());
  }
  return secret;
}

const char* StepName(v1::StepKind kind) {
  switch (kind) {
    case v1::STEP_KIND_CONNECT:
      return "connect";
    case v1::STEP_KIND_PAUSE:
      return "pause";
    case v1::STEP_KIND_TRANSFER:
      return "transfer";
    case v1::STEP_KIND_COMMIT:
      return "commit";
    case v1::STEP_KIND_RESUME:
      return "resume";
    default:
      return "prepare";
  }
}

}  // namespace

SyncTask::SyncTask(const SyncContext& context, SyncInput input, const SyncOptions& options,
                   std::shared_ptr<SyncRecord> record)
    : context_(context),
      input_(std::move(input)),
      options_(options),
      record_(std::move(record)),
      id_(record_->id()),
      secret_(MakeSecret()),
      agents_id_(id_),
      deadline_ns_(record_->trigger_ns() + absl::ToInt64Nanoseconds(options.deadline)),
      resume_deadline_ns_(deadline_ns_ + absl::ToInt64Nanoseconds(options.resume_grace)) {
  for (int32_t e : input_.engines) engines_[e].dirty = input_.dirty.contains(e);
  for (const RankEntry& rank : input_.ranks) {
    Node& node = nodes_[rank.node];
    node.incarnation = rank.incarnation;
    node.ranks.push_back(&rank);
    if (rank.id.role == Role::kTrainer) {
      node.has_trainers = true;
    } else {
      engines_[rank.id.engine].nodes.insert(rank.node);
    }
  }
}

// --- events

void SyncTask::NodeFailed(const std::string& name, const absl::Status& status) {
  if (step_ == v1::STEP_KIND_UNSPECIFIED) return;  // the next step that needs the node will find it
  auto it = replies_.find(name);
  if (it == replies_.end() || it->second.done) return;
  if (step_ == v1::STEP_KIND_RESUME && !nodes_.at(name).lost) return;  // it may come back
  it->second.done = true;
  it->second.status = status;
  --pending_;
  ChargeNode(name, status);
  changed_.SignalAll();
}

void SyncTask::OnStepResult(const std::string& node, uint64_t incarnation,
                            const v1::StepResult& result) {
  absl::MutexLock lock(&mu_);
  if (step_ == v1::STEP_KIND_UNSPECIFIED || result.kind() != step_ ||
      result.sync_id() != agents_id_) {
    return;  // too late
  }
  auto it = replies_.find(node);
  if (it == replies_.end() || it->second.done || nodes_.at(node).incarnation != incarnation) return;
  it->second.done = true;
  it->second.result = result;
  --pending_;
  Charge(node, result);
  changed_.SignalAll();
}

void SyncTask::OnProgress(const std::string& node, uint64_t bytes_done) {
  absl::MutexLock lock(&mu_);
  auto it = nodes_.find(node);
  if (it == nodes_.end() || step_ != v1::STEP_KIND_TRANSFER) return;
  it->second.bytes_done = std::max(it->second.bytes_done, bytes_done);
  progressed_ = true;
  changed_.SignalAll();
}

void SyncTask::OnSessionOpened(const std::string& node, uint64_t incarnation) {
  absl::MutexLock lock(&mu_);
  auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.incarnation != incarnation || it->second.lost) return;
  if (step_ != v1::STEP_KIND_RESUME) return;  // what it was asked before is not answered any more
  auto reply = replies_.find(node);
  if (reply == replies_.end() || reply->second.done) return;
  reopened_.push_back(node);
  changed_.SignalAll();
}

void SyncTask::OnSessionBroken(const std::string& node, uint64_t incarnation,
                               const std::string& reason) {
  absl::MutexLock lock(&mu_);
  auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.incarnation != incarnation) return;
  it->second.broken = absl::UnavailableError(absl::StrCat(
      "node ", node, ": its agent's session broke during ", StepName(reached_), ": ", reason));
  NodeFailed(node, it->second.broken);
}

void SyncTask::OnNodeLost(const std::string& node, uint64_t incarnation,
                          const std::string& reason) {
  absl::MutexLock lock(&mu_);
  auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.incarnation != incarnation) return;
  it->second.lost = true;
  it->second.broken = absl::UnavailableError(
      absl::StrCat("node ", node, " was lost during ", StepName(reached_), ": ", reason));
  NodeFailed(node, it->second.broken);
}

void SyncTask::OnRankGone(const std::string& job, const RankEntry& rank,
                          const std::string& reason) {
  if (job != input_.job) return;
  absl::MutexLock lock(&mu_);
  auto it = nodes_.find(rank.node);
  if (it == nodes_.end() ||
      std::none_of(it->second.ranks.begin(), it->second.ranks.end(),
                   [&](const RankEntry* ours) { return ours->SameRegistration(rank); })) {
    return;
  }
  const absl::Status status = absl::UnavailableError(absl::StrCat(
      "node ", rank.node, ": ", rank.id.ToString(), " is no longer registered: ", reason));
  if (rank.id.role == Role::kRollout) {
    FailEngine(rank.id.engine, status);
  } else if (reached_ <= v1::STEP_KIND_TRANSFER) {
    FailAll(status);
  }
}

void SyncTask::Cancel(const absl::Status& why, absl::Duration grace) {
  absl::MutexLock lock(&mu_);
  if (cancelled_.ok()) cancelled_ = why;
  const int64_t now = Now();
  deadline_ns_ = std::min(deadline_ns_, now);
  resume_deadline_ns_ = std::min(resume_deadline_ns_, now + absl::ToInt64Nanoseconds(grace));
  FailAll(why);
  changed_.SignalAll();
}

// --- one step

bool SyncTask::StepOver() const {
  if (pending_ == 0) return true;
  if (step_ == v1::STEP_KIND_RESUME) return false;
  return !cancelled_.ok() || LiveEngines().empty();
}

void SyncTask::SendSteps(const std::vector<std::string>& nodes) {
  for (const std::string& name : nodes) {
    v1::Step step;
    uint64_t incarnation = 0;
    uint64_t sent = 0;
    {
      absl::MutexLock lock(&mu_);
      step = steps_.at(name);
      incarnation = nodes_.at(name).incarnation;
      sent = replies_.at(name).session;
    }
    // The news of a session can come after the step has already gone out on it.
    if (sent != 0 && sent == context_.gateway->SessionOf(name, incarnation)) continue;
    absl::StatusOr<uint64_t> session = context_.gateway->SendStep(name, incarnation, step);
    absl::MutexLock lock(&mu_);
    Reply& reply = replies_.at(name);
    if (session.ok()) {
      reply.session = *session;
      continue;
    }
    Node& node = nodes_.at(name);
    if (node.broken.ok()) node.broken = session.status();
    NodeFailed(name, session.status());
  }
}

void SyncTask::PublishProgress() {
  std::vector<v1::EngineResult> engines;
  uint64_t bytes = 0;
  bool engines_changed = false;
  {
    absl::MutexLock lock(&mu_);
    engines_changed = std::exchange(engines_changed_, false);
    progressed_ = false;
    if (engines_changed) engines = EngineResults();
    for (const auto& [name, node] : nodes_) bytes += node.bytes_done;
  }
  record_->Update([&](v1::Sync& sync) {
    // The transfer step's results, once there, know better than the last progress event.
    sync.set_bytes_done(std::max<uint64_t>(sync.bytes_done(), bytes));
    if (engines_changed) sync.mutable_engines()->Assign(engines.begin(), engines.end());
  });
}

void SyncTask::WaitForReplies(int64_t deadline_ns) {
  int64_t published_ns = 0;
  absl::MutexLock lock(&mu_);
  while (!StepOver()) {
    const int64_t now = Now();
    // A cancel moves the deadlines.
    const int64_t limit = step_ == v1::STEP_KIND_RESUME ? std::min(deadline_ns, resume_deadline_ns_)
                                                        : std::min(deadline_ns, deadline_ns_);
    if (now >= limit) break;
    int64_t wake_ns = limit;
    std::vector<std::string> reopened = std::exchange(reopened_, {});
    const bool publish =
        engines_changed_ || (progressed_ && now - published_ns >= kProgressIntervalNs);
    if (progressed_ && !publish) wake_ns = std::min(wake_ns, published_ns + kProgressIntervalNs);
    if (!publish && reopened.empty()) {
      changed_.WaitWithTimeout(&mu_, absl::Nanoseconds(wake_ns - now));
      continue;
    }
    mu_.Unlock();
    if (!reopened.empty()) SendSteps(reopened);
    if (publish) {
      PublishProgress();
      published_ns = now;
    }
    mu_.Lock();
  }
}

void SyncTask::AbandonPending(int64_t deadline_ns) {
  const bool late = Now() >= deadline_ns;
  for (auto& [name, reply] : replies_) {
    if (reply.done) continue;
    reply.done = true;
    --pending_;
    const Node& node = nodes_.at(name);
    if (!cancelled_.ok() && step_ != v1::STEP_KIND_RESUME) {
      reply.status = cancelled_;
    } else if (!node.broken.ok() && reply.session == 0) {
      reply.status = node.broken;
    } else if (late) {
      reply.status = absl::DeadlineExceededError(
          absl::StrCat("node ", name, " did not answer ", StepName(step_), " within the sync's ",
                       absl::FormatDuration(options_.deadline),
                       step_ == v1::STEP_KIND_RESUME ? " and the grace after it" : "",
                       "; look at its agent's log or allow a longer deadline"));
    } else {
      reply.status = absl::AbortedError("no engine was left to work for");
    }
    ChargeNode(name, reply.status);
  }
}

SyncTask::Replies SyncTask::RunStep(v1::StepKind kind, Steps steps, int64_t deadline_ns) {
  std::vector<std::string> nodes;
  for (const auto& [name, step] : steps) {
    nodes.push_back(name);
    told_.insert(name);
  }
  {
    absl::MutexLock lock(&mu_);
    step_ = kind;
    reached_ = kind;
    steps_ = std::move(steps);
    replies_.clear();
    reopened_.clear();
    pending_ = nodes.size();
    for (const std::string& name : nodes) replies_[name];
    // What broke between the steps is found here; for RESUME a broken session may have come back.
    for (const std::string& name : nodes) {
      const Node& node = nodes_.at(name);
      if (!node.broken.ok() && (node.lost || kind != v1::STEP_KIND_RESUME)) {
        NodeFailed(name, node.broken);
      }
    }
    std::erase_if(nodes, [this](const std::string& name)
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return replies_[name].done; });
    if (StepOver()) nodes.clear();
  }
  SendSteps(nodes);
  WaitForReplies(deadline_ns);
  Replies replies;
  {
    absl::MutexLock lock(&mu_);
    AbandonPending(
        std::min(deadline_ns, kind == v1::STEP_KIND_RESUME ? resume_deadline_ns_ : deadline_ns_));
    step_ = v1::STEP_KIND_UNSPECIFIED;
    replies = std::move(replies_);
    replies_.clear();
    steps_.clear();
  }
  PublishProgress();
  return replies;
}

}  // namespace xfer
