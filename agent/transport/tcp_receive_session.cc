#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp_receiver.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// Transfers of a session whose finish has not been answered. A sender has no reason for more;
// without a bound, a peer could make this process remember any number.
constexpr size_t kMaxTransfers = 1 << 18;

// The checks that the table's own Enter() cannot make.
absl::Status CheckAgainst(const wire::Frame& frame, const Transfer& transfer) {
  if (frame.end() <= transfer.bytes &&
      (frame.end() % kDigestLeafBytes == 0 || frame.end() == transfer.bytes)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("range [", frame.begin(), ", ", frame.end(), ") does not fit transfer ",
                   transfer.id, " of ", transfer.bytes, " bytes; the sender has another plan"));
}

}  // namespace

void ReceiveSession::AddStream(const std::shared_ptr<ReceiveStream>& stream) {
  absl::MutexLock lock(&mu_);
  streams_.push_back(stream);
}

void ReceiveSession::End(absl::string_view reason) {
  std::vector<std::weak_ptr<ReceiveStream>> streams;
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(ended_, true)) return;
    streams = std::move(streams_);
    streams_.clear();
    states_.clear();
    held_ = 0;
  }
  for (const auto& weak : streams) {
    if (const auto stream = weak.lock()) stream->Close(reason, /*wait=*/false);
  }
}

absl::StatusOr<ReceiveTable::Target> ReceiveSession::Admit(const wire::Frame& frame) {
  XFER_ASSIGN_OR_RETURN(ReceiveTable::Target target, table_->Enter(frame.sync, frame.transfer));
  absl::Status status = CheckAgainst(frame, *target.transfer);
  if (status.ok()) {
    absl::MutexLock lock(&mu_);
    auto& ranges = states_[{frame.sync, frame.transfer}].ranges;
    auto after = ranges.upper_bound(frame.begin());
    auto before = after == ranges.begin() ? ranges.end() : std::prev(after);
    if ((before != ranges.end() && before->second > frame.begin()) ||
        (after != ranges.end() && after->first < frame.end())) {
      status = absl::InvalidArgumentError(absl::StrCat("range [", frame.begin(), ", ", frame.end(),
                                                       ") of transfer ", frame.transfer,
                                                       " was sent before, in part or whole"));
    } else {
      uint64_t begin = frame.begin();
      uint64_t end = frame.end();
      if (before != ranges.end() && before->second == begin) begin = before->first;
      if (after != ranges.end() && after->first == end) {
        end = after->second;
        ranges.erase(after);
      }
      ranges[begin] = end;
    }
  }
  if (!status.ok()) {
    table_->Leave(frame.sync, frame.transfer);
    return status;
  }
  return target;
}

absl::Status ReceiveSession::BeginRange(const wire::Frame& frame,
                                        absl::StatusOr<ReceiveTable::Target>& target) {
  const TransferKey key{frame.sync, frame.transfer};
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return absl::CancelledError("the session has ended");
    if (states_.size() >= kMaxTransfers && !states_.contains(key)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", kMaxTransfers, " transfers without a finish"));
    }
    states_[key];
  }
  target = Admit(frame);
  if (!target.ok()) {
    absl::MutexLock lock(&mu_);
    states_[key].refused.Update(target.status());
  }
  return absl::OkStatus();
}

void ReceiveSession::EndRange(const wire::Frame& frame, bool entered) {
  const TransferKey key{frame.sync, frame.transfer};
  if (entered) table_->Leave(frame.sync, frame.transfer);
  std::optional<HeldFinish> finish;
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    states_[key].settled += frame.end() - frame.begin();
    finish = ReadyFinish(key, refused);
  }
  if (finish.has_value()) Answer(key, *finish, refused);
}

absl::Status ReceiveSession::Finish(const wire::Frame& frame,
                                    const std::shared_ptr<ReceiveStream>& stream) {
  const TransferKey key{frame.sync, frame.transfer};
  std::optional<HeldFinish> finish;
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return absl::CancelledError("the session has ended");
    if (states_.size() >= kMaxTransfers && !states_.contains(key)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", kMaxTransfers, " transfers without a finish"));
    }
    State& state = states_[key];
    if (state.finish.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("transfer ", frame.transfer, " is finished twice"));
    }
    if (held_++ == 0) Progress();
    state.finish = HeldFinish{frame.announced(), frame.digest(), stream};
    finish = ReadyFinish(key, refused);
  }
  if (finish.has_value()) Answer(key, *finish, refused);
  return absl::OkStatus();
}

std::optional<ReceiveSession::HeldFinish> ReceiveSession::ReadyFinish(const TransferKey& key,
                                                                      absl::Status& refused) {
  const auto it = states_.find(key);
  State& state = it->second;
  if (!state.finish.has_value() || state.settled < state.finish->announced) return std::nullopt;
  HeldFinish finish = *std::move(state.finish);
  refused = std::move(state.refused);
  states_.erase(it);
  --held_;
  return finish;
}

void ReceiveSession::Answer(const TransferKey& key, const HeldFinish& finish,
                            const absl::Status& refused) {
  absl::Status status = refused;
  if (status.ok()) status = table_->Enter(key.sync, key.transfer).status();
  if (status.ok()) {
    status = table_->Finished(key.sync, key.transfer, finish.digest);
    table_->Leave(key.sync, key.transfer);
  }
  if (const auto stream = finish.stream.lock()) {
    stream->Answer(wire::EncodeAnswer(key.sync.sync_id, key.transfer, status));
  }
}

void ReceiveSession::Progress() {
  progress_nanos_.store(Clock::Real()->MonotonicNanos(), std::memory_order_relaxed);
}

int64_t ReceiveSession::HeldFor(int64_t now_nanos) {
  absl::MutexLock lock(&mu_);
  if (held_ == 0) return 0;
  return now_nanos - progress_nanos_.load(std::memory_order_relaxed);
}

}  // namespace xfer
