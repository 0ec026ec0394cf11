#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp_sender.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// Ranges that were posted and whose completions were not taken yet, an endpoint.
constexpr size_t kMaxQueued = 4096;
// One batch of small frames ends at either of these.
constexpr size_t kBatchChunks = 64;
constexpr uint64_t kBatchBytes = 64 * 1024;

}  // namespace

void SendSession::AddStream(std::shared_ptr<SendStream> stream) {
  absl::MutexLock lock(&mu_);
  idle_.push_back(stream.get());
  streams_.push_back(std::move(stream));
}

absl::Status SendSession::Usable() const {
  if (status_.ok()) return absl::OkStatus();
  // Unavailable would invite the caller to try again.
  if (absl::IsUnavailable(status_)) return absl::AbortedError(status_.message());
  return status_;
}

absl::Status SendSession::PostRange(const SendRange& range) {
  if (absl::Status status = CheckRange(range); !status.ok()) {
    return Annotate(status, absl::StrCat("tcp to ", peer_));
  }
  absl::MutexLock lock(&mu_);
  XFER_RETURN_IF_ERROR(Usable());
  if (ranges_ + completions_.size() >= kMaxQueued) {
    return absl::UnavailableError(
        absl::StrCat("tcp to ", peer_, ": ", kMaxQueued, " ranges are queued; Poll() first"));
  }
  if (!Outstanding()) Progress();
  auto posted = std::make_shared<PostedRange>();
  posted->range = range;
  posted->next = range.begin;
  posted->unwritten = range.end - range.begin;
  ++ranges_;
  announced_[{range.sync, range.transfer->id}] += posted->unwritten;
  queue_.push_back({std::move(posted), {}});
  Queued(range.end - range.begin);
  return absl::OkStatus();
}

absl::Status SendSession::PostFinish(const SyncKey& sync, const Transfer& transfer,
                                     uint64_t digest) {
  absl::MutexLock lock(&mu_);
  XFER_RETURN_IF_ERROR(Usable());
  if (finishes_.contains({sync.sync_id, transfer.id})) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp to ", peer_, ": transfer ", transfer.id, " is being finished already"));
  }
  if (!Outstanding()) Progress();
  QueueItem item;
  item.finish.type = wire::FrameType::kFinish;
  item.finish.sync = sync;
  item.finish.transfer = transfer.id;
  if (const auto it = announced_.find({sync, transfer.id}); it != announced_.end()) {
    item.finish.a = it->second;
    announced_.erase(it);
  }
  item.finish.b = digest;
  finishes_[{sync.sync_id, transfer.id}] = true;
  queue_.push_back(std::move(item));
  Queued(wire::kFrameBytes);
  return absl::OkStatus();
}

void SendSession::Queued(uint64_t bytes) {
  queued_bytes_ += bytes;
  while (!idle_.empty()) {
    const size_t before = idle_.size();
    KickIfUseful();
    if (idle_.size() == before) return;
  }
}

// One more stream helps where the busy ones are stuck, or have more than a chunk each before them.
void SendSession::KickIfUseful() {
  const size_t busy = streams_.size() - idle_.size();
  if (idle_.empty() || queue_.empty()) return;
  if (busy > blocked_ && queued_bytes_ < busy * chunk_bytes_) return;
  SendStream* stream = idle_.back();
  idle_.pop_back();
  stream->Kick();
}

bool SendSession::Take(SendStream* stream, std::vector<SendChunk>& batch) {
  batch.clear();
  absl::MutexLock lock(&mu_);
  uint64_t bytes = 0;
  while (status_.ok() && !queue_.empty() && batch.size() < kBatchChunks && bytes < kBatchBytes) {
    QueueItem& item = queue_.front();
    SendChunk& chunk = batch.emplace_back();
    if (item.posted == nullptr) {
      chunk.header = wire::EncodeFrame(item.finish);
      queued_bytes_ -= wire::kFrameBytes;
      queue_.pop_front();
    } else {
      PostedRange& posted = *item.posted;
      chunk.begin = posted.next;
      chunk.end = std::min(posted.range.end, chunk.begin + chunk_bytes_);
      chunk.posted = item.posted;
      posted.next = chunk.end;
      wire::Frame frame;
      frame.sync = posted.range.sync;
      frame.transfer = posted.range.transfer->id;
      frame.a = chunk.begin;
      frame.b = chunk.end;
      chunk.header = wire::EncodeFrame(frame);
      queued_bytes_ -= chunk.payload_bytes();
      if (posted.next == posted.range.end) queue_.pop_front();
    }
    bytes += chunk.bytes();
  }
  if (!batch.empty()) return true;
  if (status_.ok()) idle_.push_back(stream);
  return false;
}

void SendSession::Progress() {
  progress_nanos_.store(Clock::Real()->MonotonicNanos(), std::memory_order_relaxed);
}

void SendSession::Written(const std::vector<SendChunk>& batch, size_t chunks) {
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < chunks; ++i) {
    const SendChunk& chunk = batch[i];
    if (chunk.posted == nullptr) continue;
    chunk.posted->unwritten -= chunk.payload_bytes();
    if (chunk.posted->unwritten > 0) continue;
    const SendRange& range = chunk.posted->range;
    Completion completion;
    completion.transfer = range.transfer->id;
    completion.begin = range.begin;
    completion.end = range.end;
    completions_.push_back(std::move(completion));
    --ranges_;
    changed_.Signal();
  }
}

void SendSession::Blocked() {
  absl::MutexLock lock(&mu_);
  ++blocked_;
  KickIfUseful();
}

void SendSession::Unblocked() {
  absl::MutexLock lock(&mu_);
  --blocked_;
}

absl::Status SendSession::Answered(uint64_t sync_id, TransferId transfer,
                                   const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (finishes_.erase({sync_id, transfer}) == 0) {
    return absl::InternalError(absl::StrCat("answer for transfer ", transfer, " of sync ", sync_id,
                                            ", which was not asked for"));
  }
  Completion completion;
  completion.transfer = transfer;
  completion.finish = true;
  completion.status = Annotate(status, peer_);
  completions_.push_back(std::move(completion));
  changed_.Signal();
  return absl::OkStatus();
}

absl::Status SendSession::FailLocked(const absl::Status& status) {
  if (!status_.ok()) return status_;
  status_ = Annotate(status, absl::StrCat("tcp to ", peer_));
  queue_.clear();
  idle_.clear();
  for (const std::shared_ptr<SendStream>& stream : streams_) stream->Close(/*wait=*/false);
  changed_.SignalAll();
  return status_;
}

void SendSession::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  FailLocked(status).IgnoreError();  // the endpoint gets it from Poll()
}

void SendSession::Close() {
  std::vector<std::shared_ptr<SendStream>> streams;
  {
    absl::MutexLock lock(&mu_);
    if (status_.ok()) status_ = absl::CancelledError("the endpoint was destroyed");
    queue_.clear();
    idle_.clear();
    streams = std::move(streams_);
    streams_.clear();
  }
  for (const std::shared_ptr<SendStream>& stream : streams) stream->Close(/*wait=*/true);
}

void SendSession::CheckStall(int64_t now_nanos) {
  absl::MutexLock lock(&mu_);
  const auto still = absl::Nanoseconds(now_nanos - progress_nanos_.load(std::memory_order_relaxed));
  if (!status_.ok() || !Outstanding() || still < stall_timeout_) return;
  FailLocked(absl::DeadlineExceededError(absl::StrCat(
                 "no progress for ", absl::FormatDuration(stall_timeout_), " with ", ranges_,
                 " ranges and ", finishes_.size(), " answers outstanding; is its agent stopped?")))
      .IgnoreError();  // the endpoint gets it from Poll()
}

absl::Status SendSession::Poll(absl::Duration timeout, std::vector<Completion>& out) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::MutexLock lock(&mu_);
  while (completions_.empty()) {
    XFER_RETURN_IF_ERROR(status_);
    if (timeout <= absl::ZeroDuration() || changed_.WaitWithDeadline(&mu_, deadline)) break;
  }
  std::move(completions_.begin(), completions_.end(), std::back_inserter(out));
  completions_.clear();
  return absl::OkStatus();
}

}  // namespace xfer
