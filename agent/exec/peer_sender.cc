#include "agent/exec/peer_sender.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/exec/transfer_digest.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// How long a completion is waited for before aborts and arrivals are looked at again.
constexpr absl::Duration kPollSlice = absl::Milliseconds(20);
constexpr absl::Duration kPollSliceWhileWaiting = absl::Milliseconds(2);
constexpr absl::Duration kReconnectTimeout = absl::Seconds(10);
constexpr absl::Duration kReconnectPause = absl::Milliseconds(100);
// Chunks of a sender that may be converted and not yet sent.
constexpr size_t kMaxStaging = 8;

// Errors that another attempt would meet again.
bool IsPermanent(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) ||
         absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
}

}  // namespace

PeerSender::PeerSender(std::shared_ptr<SendJob> job, const char* transport,
                       std::unique_ptr<Endpoint> endpoint, Connect connect,
                       const std::vector<uint32_t>& transfers, size_t stagger)
    : job_(std::move(job)),
      transport_(transport),
      endpoint_(std::move(endpoint)),
      connect_(std::move(connect)) {
  for (uint32_t transfer : transfers) {
    const Transfer& planned = job_->part->transfers[transfer].planned;
    Queue& queue = QueueOf(planned.destination);
    if (planned.waits_for.empty()) {
      queue.ready.push_back(transfer);
    } else {
      queue.waiting.push_back(transfer);
    }
  }
  if (!queues_.empty()) turn_ = stagger % queues_.size();
  arrivals_seen_ = ~uint64_t{0};  // what waits is looked at once in any case
}

PeerSender::Queue& PeerSender::QueueOf(int32_t rank) {
  for (Queue& queue : queues_) {
    if (queue.rank == rank) return queue;
  }
  queues_.emplace_back().rank = rank;
  return queues_.back();
}

bool PeerSender::QueuesEmpty() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const Queue& queue) {
    return queue.ready.empty() && queue.waiting.empty();
  });
}

bool PeerSender::NothingReady() const {
  return std::all_of(queues_.begin(), queues_.end(), [this](const Queue& queue) {
    return queue.ready.empty() && (queue.waiting.empty() || !job_->failures->Failed(queue.rank));
  });
}

PeerSender::State PeerSender::Run(absl::Duration quantum) {
  const absl::Time until = absl::Now() + quantum;
  while (true) {
    if (job_->stop.HasBeenNotified() || absl::Now() >= job_->deadline) {
      endpoint_.reset();  // nothing reads the source any more from here on
      return State::kDone;
    }
    WakeWaiting();
    absl::Status status = Post();
    if (status.ok() && Idle()) {
      if (QueuesEmpty()) return State::kDone;
      if (NothingReady()) return State::kParked;
    }
    if (status.ok()) {
      const bool waiting = std::any_of(queues_.begin(), queues_.end(),
                                       [](const Queue& queue) { return !queue.waiting.empty(); });
      completions_.clear();
      status = endpoint_->Poll(waiting ? kPollSliceWhileWaiting : kPollSlice, completions_);
      for (const Completion& completion : completions_) Complete(completion);
    }
    if (!status.ok()) Recover(std::move(status));
    if (endpoint_ == nullptr) return State::kDone;
    if (absl::Now() >= until) return State::kMore;
  }
}

std::unique_ptr<Endpoint> PeerSender::TakeEndpoint() {
  if (!Idle()) endpoint_.reset();
  return std::move(endpoint_);
}

bool PeerSender::Arrived(uint32_t transfer) {
  for (TransferId id : job_->part->transfers[transfer].planned.waits_for) {
    const std::optional<uint32_t> index = job_->part->Find(id);
    const int32_t rank = job_->part->transfers[*index].planned.destination;
    if (job_->receive->Done(*index)) continue;
    if (job_->failures->Failed(rank)) {
      job_->failures->FailTransfer(
          transfer, absl::AbortedError(absl::StrCat("the bytes to pass on did not come: ",
                                                    job_->failures->StatusOf(rank).message())));
    }
    return false;
  }
  return true;
}

void PeerSender::WakeWaiting() {
  const uint64_t arrivals = job_->receive->arrivals();
  const bool failed = !job_->failures->first().ok();
  if (arrivals == arrivals_seen_ && !failed) return;
  arrivals_seen_ = arrivals;
  for (Queue& queue : queues_) {
    if (queue.waiting.empty() || job_->failures->Failed(queue.rank)) continue;
    auto still = std::stable_partition(queue.waiting.begin(), queue.waiting.end(),
                                       [&](uint32_t transfer) { return !Arrived(transfer); });
    queue.ready.insert(queue.ready.end(), still, queue.waiting.end());
    queue.waiting.erase(still, queue.waiting.end());
  }
}

bool PeerSender::PickNext() {
  for (size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = queues_[turn_];
    turn_ = (turn_ + 1) % queues_.size();
    if (queue.ready.empty() || job_->failures->Failed(queue.rank)) continue;
    const uint32_t transfer = queue.ready.front();
    queue.ready.pop_front();
    const Transfer& planned = job_->part->transfers[transfer].planned;
    auto active = std::make_unique<Active>();
    active->transfer = transfer;
    active->start_ns = job_->clock->MonotonicNanos();
    job_->ledger->Started(planned.source, active->start_ns);
    current_ = active.get();
    active_[planned.id] = std::move(active);
    return true;
  }
  return false;
}

absl::Status PeerSender::Post() {
  while (true) {
    absl::StatusOr<bool> posted = PostNext();
    if (!posted.ok()) return posted.status();
    if (!*posted) return absl::OkStatus();
  }
}

absl::StatusOr<bool> PeerSender::PostNext() {
  if (current_ == nullptr) {
    absl::StatusOr<bool> told = TellFailed();
    if (!told.ok() || *told) return told;
    if (!PickNext()) return false;
  }
  const PartTransfer& part = PartOf(*current_);
  if (current_->next == part.planned.bytes) return PostFinish(current_->digest);
  if (job_->pins[part.planned.source]->gone() && !Failed(*current_)) {
    job_->failures->FailTransfer(
        current_->transfer, absl::FailedPreconditionError(
                                absl::StrCat(job_->part->ranks[part.planned.source].id.ToString(),
                                             " has gone while its weights were read")));
  }
  if (Failed(*current_)) return PostFinish(0);
  return PostChunk();
}

bool PeerSender::PrepareChunk() {
  const PartTransfer& part = PartOf(*current_);
  const Transfer& planned = part.planned;
  const std::byte* source = job_->pins[planned.source]->region(planned.source_region).base;
  const uint64_t begin = current_->next;
  const uint64_t end = std::min(begin + job_->chunk_bytes, planned.bytes);
  std::unique_ptr<std::byte[]> staging;
  if (part.converted != nullptr) {
    if (free_staging_.empty()) {
      if (staging_made_ == kMaxStaging) return false;
      ++staging_made_;
      free_staging_.push_back(std::make_unique<std::byte[]>(job_->chunk_bytes));
    }
    staging = std::move(free_staging_.back());
    free_staging_.pop_back();
    ConvertRange(planned, *part.converted, source, begin, end, {staging.get(), end - begin});
  }
  chunk_.digest = 0;
  if (IsVerified(job_->verify, job_->key.sync_id, part)) {
    const int64_t start = job_->clock->MonotonicNanos();
    chunk_.digest = staging != nullptr
                        ? DigestRange(begin, {staging.get(), end - begin})
                        : DigestOfTransfer(part.wire(), TransferSide::kSource, source, begin, end);
    job_->ledger->Digested(planned.source, job_->clock->MonotonicNanos() - start);
  }
  chunk_.end = end;
  chunk_.staging = std::move(staging);
  return true;
}

absl::StatusOr<bool> PeerSender::PostChunk() {
  if (in_flight_ >= job_->inflight_bytes) return false;
  if (chunk_.end == 0 && !PrepareChunk()) return false;
  const PartTransfer& part = PartOf(*current_);
  const Transfer& planned = part.planned;
  SendRange range;
  range.sync = job_->key;
  range.transfer = &part.wire();
  range.source = job_->pins[planned.source]->region(planned.source_region);
  range.begin = current_->next;
  range.end = chunk_.end;
  if (chunk_.staging != nullptr) {
    // The staging memory stands for bytes [begin, end) of a region that holds the whole stream.
    range.source.base = reinterpret_cast<std::byte*>(
        reinterpret_cast<uintptr_t>(chunk_.staging.get()) - range.begin);
    range.source.bytes = planned.bytes;
    range.unregistered = true;
  }
  absl::Status status = endpoint_->PostRange(range);
  if (absl::IsUnavailable(status)) return false;  // full; if it is broken, Poll() says so
  if (!status.ok()) return status;
  if (chunk_.staging != nullptr) {
    staged_[{planned.id, range.begin}] = std::move(chunk_.staging);
  }
  in_flight_ += range.end - range.begin;
  ++current_->outstanding;
  current_->digest += chunk_.digest;
  current_->next = range.end;
  chunk_ = {};
  return true;
}

absl::StatusOr<bool> PeerSender::PostFinish(uint64_t digest) {
  absl::Status status = endpoint_->PostFinish(job_->key, PartOf(*current_).wire(), digest);
  if (absl::IsUnavailable(status)) return false;
  if (!status.ok()) return status;
  if (chunk_.staging != nullptr) free_staging_.push_back(std::move(chunk_.staging));
  chunk_ = {};
  current_->finish_posted = true;
  current_ = nullptr;
  return true;
}

absl::StatusOr<bool> PeerSender::TellFailed() {
  for (Queue& queue : queues_) {
    if (!job_->failures->Failed(queue.rank)) continue;
    if (queue.ready.empty() && queue.waiting.empty()) continue;
    const uint32_t first = queue.ready.empty() ? queue.waiting.front() : queue.ready.front();
    if (!queue.told) {
      absl::Status status =
          endpoint_->PostFinish(job_->key, job_->part->transfers[first].wire(), 0);
      if (absl::IsUnavailable(status)) return false;
      if (!status.ok()) return status;
      queue.told = true;
      ++told_outstanding_;
    }
    queue.ready.clear();
    queue.waiting.clear();
    return true;
  }
  return false;
}

void PeerSender::Complete(const Completion& completion) {
  auto found = active_.find(completion.transfer);
  if (found == active_.end()) {
    if (completion.finish && told_outstanding_ > 0) --told_outstanding_;
    return;
  }
  Active& active = *found->second;
  if (completion.finish) {
    active.finish_done = true;
  } else {
    in_flight_ -= completion.end - completion.begin;
    --active.outstanding;
    auto staged = staged_.find({completion.transfer, completion.begin});
    if (staged != staged_.end()) {
      free_staging_.push_back(std::move(staged->second));
      staged_.erase(staged);
    }
  }
  if (!completion.status.ok() && !Failed(active)) {
    job_->failures->FailTransfer(active.transfer, completion.status);
  } else if (completion.finish && completion.status.ok()) {
    auto retries = retries_.find(active.transfer);
    job_->ledger->Acknowledged({active.transfer, active.start_ns, job_->clock->MonotonicNanos(),
                                retries == retries_.end() ? 0 : retries->second, transport_,
                                completion.by_rail});
  }
  if (active.finish_done && active.outstanding == 0) active_.erase(found);
}

void PeerSender::Recover(absl::Status cause) {
  endpoint_.reset();
  Requeue();
  while (!job_->stop.HasBeenNotified() && absl::Now() < job_->deadline) {
    if (IsPermanent(cause) || reconnects_ == job_->max_reconnects) {
      FailRest(cause);
      return;
    }
    ++reconnects_;
    spdlog::warn("sync {}: {}; connecting again ({} of {})", job_->key.sync_id,
                 std::string(cause.message()), reconnects_, job_->max_reconnects);
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint =
        connect_(std::min(job_->deadline, absl::Now() + kReconnectTimeout));
    if (endpoint.ok()) {
      endpoint_ = *std::move(endpoint);
      return;
    }
    cause = endpoint.status();
    job_->stop.WaitForNotificationWithTimeout(kReconnectPause * reconnects_);
  }
}

void PeerSender::Requeue() {
  std::vector<uint32_t> again;
  for (const auto& [id, active] : active_) {
    if (!active->finish_done && !Failed(*active)) again.push_back(active->transfer);
  }
  // The earliest is to stand in front, so it is put there last.
  std::sort(again.begin(), again.end(), std::greater<>());
  for (uint32_t transfer : again) {
    const Transfer& planned = job_->part->transfers[transfer].planned;
    QueueOf(planned.destination).ready.push_front(transfer);
    ++retries_[transfer];
    job_->ledger->Retried(planned.source);
  }
  active_.clear();
  current_ = nullptr;
  if (chunk_.staging != nullptr) free_staging_.push_back(std::move(chunk_.staging));
  chunk_ = {};
  for (auto& [key, staging] : staged_) free_staging_.push_back(std::move(staging));
  staged_.clear();
  in_flight_ = 0;
  told_outstanding_ = 0;
}

void PeerSender::FailRest(const absl::Status& cause) {
  for (Queue& queue : queues_) {
    if (queue.ready.empty() && queue.waiting.empty()) continue;
    if (!job_->failures->Failed(queue.rank)) {
      job_->failures->FailTransfer(
          queue.ready.empty() ? queue.waiting.front() : queue.ready.front(), cause);
    }
    queue.ready.clear();
    queue.waiting.clear();
  }
}

}  // namespace xfer
