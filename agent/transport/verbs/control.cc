#include "agent/transport/verbs/control.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/status.h"
#include "spdlog/spdlog.h"

namespace xfer::verbs {
namespace {

// Calls with finishes that run at the same time: the receiver takes digests in them, one core a
// call.
constexpr size_t kFinishThreads = 3;
constexpr size_t kMostFinishes = 256;  // of one call: later ones would wait for all of them
constexpr size_t kMostExposes = 16384;
constexpr absl::Duration kCloseTimeout = absl::Seconds(2);

}  // namespace

ControlCalls::ControlCalls(Options options) : options_(std::move(options)) {
  threads_.emplace_back([this] { RunExposes(); });
  for (size_t i = 0; i < kFinishThreads; ++i) threads_.emplace_back([this] { RunFinishes(); });
}

ControlCalls::~ControlCalls() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  // Ends, at the receiver, what the running calls wait for.
  v1::VerbsRequest close;
  close.set_session(options_.session);
  close.mutable_close();
  const auto closed = options_.control->Call(options_.peer, close, absl::Now() + kCloseTimeout);
  if (!closed.ok()) {
    spdlog::debug("verbs: close of the session with {}: {}", options_.peer.node,
                  std::string(closed.status().message()));
  }
  for (std::thread& thread : threads_) thread.join();
}

void ControlCalls::Expose(const v1::VerbsTransfer& transfer) {
  absl::MutexLock lock(&mu_);
  to_expose_.push_back(transfer);
  changed_.SignalAll();
}

void ControlCalls::Finish(v1::VerbsFinished transfer) {
  absl::MutexLock lock(&mu_);
  to_finish_.push_back(std::move(transfer));
  changed_.SignalAll();
}

void ControlCalls::GiveUp(uint32_t pair) {
  absl::MutexLock lock(&mu_);
  dead_.push_back(pair);
}

absl::Status ControlCalls::Take(std::vector<ExposeResult>& exposed,
                                std::vector<FinishResult>& finished) {
  absl::MutexLock lock(&mu_);
  std::move(exposed_.begin(), exposed_.end(), std::back_inserter(exposed));
  std::move(finished_.begin(), finished_.end(), std::back_inserter(finished));
  exposed_.clear();
  finished_.clear();
  return status_;
}

void ControlCalls::RunExposes() {
  while (true) {
    std::vector<v1::VerbsTransfer> batch;
    {
      absl::MutexLock lock(&mu_);
      const absl::Time say_something = absl::Now() + options_.lease / 3;
      while (!stop_ && status_.ok() && to_expose_.empty()) {
        if (changed_.WaitWithDeadline(&mu_, say_something)) break;
      }
      if (stop_ || !status_.ok()) return;
      const size_t count = std::min(to_expose_.size(), kMostExposes);
      batch.assign(to_expose_.begin(), to_expose_.begin() + static_cast<ptrdiff_t>(count));
      to_expose_.erase(to_expose_.begin(), to_expose_.begin() + static_cast<ptrdiff_t>(count));
    }
    if (!batch.empty()) {
      CallExpose(std::move(batch));
      continue;
    }
    v1::VerbsRequest request;
    request.mutable_keep_alive();
    if (const auto reply = Call(std::move(request)); !reply.ok()) Fail(reply.status());
  }
}

void ControlCalls::RunFinishes() {
  while (true) {
    std::vector<v1::VerbsFinished> batch;
    std::vector<uint32_t> dead;
    {
      absl::MutexLock lock(&mu_);
      while (!stop_ && status_.ok() && to_finish_.empty()) changed_.Wait(&mu_);
      if (stop_ || !status_.ok()) return;
      const size_t share = (to_finish_.size() + kFinishThreads - 1) / kFinishThreads;
      const auto end = to_finish_.begin() + static_cast<ptrdiff_t>(std::min(share, kMostFinishes));
      std::move(to_finish_.begin(), end, std::back_inserter(batch));
      to_finish_.erase(to_finish_.begin(), end);
      dead = dead_;
    }
    CallFinish(std::move(batch), std::move(dead));
  }
}

absl::StatusOr<v1::VerbsReply> ControlCalls::Call(v1::VerbsRequest request) {
  request.set_session(options_.session);
  return options_.control->Call(options_.peer, request, absl::Now() + options_.call_timeout);
}

void ControlCalls::CallExpose(std::vector<v1::VerbsTransfer> transfers) {
  v1::VerbsRequest request;
  auto& list = *request.mutable_expose()->mutable_transfers();
  list.Add(transfers.begin(), transfers.end());
  const absl::StatusOr<v1::VerbsReply> reply = Call(std::move(request));
  if (!reply.ok()) return Fail(reply.status());
  const v1::VerbsExposeReply& answer = reply->expose();
  const auto regions = DecodeRegions(answer, options_.rails);
  if (!regions.ok()) return Fail(regions.status());
  if (static_cast<size_t>(answer.targets_size()) != transfers.size()) {
    return Fail(absl::InternalError(absl::StrCat("the receiver answered ", answer.targets_size(),
                                                 " of ", transfers.size(), " transfers")));
  }
  std::vector<ExposeResult> results;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const v1::VerbsTransfer& transfer = transfers[i];
    const v1::VerbsTarget& target = answer.targets(static_cast<int>(i));
    const TransferKey key{{transfer.sync_id(), transfer.secret()}, transfer.transfer()};
    const absl::Status outcome = FromOutcome(target.outcome());
    if (!outcome.ok()) {
      results.push_back({key, outcome});
    } else {
      results.push_back({key, DecodeTarget(target, *regions, transfer.bytes())});
    }
  }
  absl::MutexLock lock(&mu_);
  std::move(results.begin(), results.end(), std::back_inserter(exposed_));
  Wake();
}

void ControlCalls::CallFinish(std::vector<v1::VerbsFinished> transfers,
                              std::vector<uint32_t> dead) {
  v1::VerbsRequest request;
  v1::VerbsFinish& finish = *request.mutable_finish();
  finish.mutable_transfers()->Add(transfers.begin(), transfers.end());
  finish.mutable_dead_queue_pairs()->Add(dead.begin(), dead.end());
  const absl::StatusOr<v1::VerbsReply> reply = Call(std::move(request));
  if (!reply.ok()) return Fail(reply.status());
  const auto& outcomes = reply->finish().outcomes();
  if (static_cast<size_t>(outcomes.size()) != transfers.size()) {
    return Fail(absl::InternalError(absl::StrCat("the receiver answered ", outcomes.size(), " of ",
                                                 transfers.size(), " finishes")));
  }
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < transfers.size(); ++i) {
    const v1::VerbsFinished& transfer = transfers[i];
    finished_.push_back({{{transfer.sync_id(), transfer.secret()}, transfer.transfer()},
                         FromOutcome(outcomes[static_cast<int>(i)])});
  }
  Wake();
}

void ControlCalls::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (status_.ok()) status_ = status;
  changed_.SignalAll();
  Wake();
}

void ControlCalls::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(options_.wake, &one, sizeof(one));
}

}  // namespace xfer::verbs
