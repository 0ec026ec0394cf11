#include "agent/transport/verbs/endpoint.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer::verbs {
namespace {

// Ranges that were posted and whose completions were not taken yet.
constexpr size_t kMaxQueued = 4096;
// How much longer than its own time limit the peer gets to answer a control call.
constexpr absl::Duration kCallSlack = absl::Seconds(5);

// Adds [begin, end) to disjoint ranges; false: some of it is there already.
bool AddInterval(std::map<uint64_t, uint64_t>& ranges, uint64_t begin, uint64_t end) {
  auto after = ranges.upper_bound(begin);
  auto before = after == ranges.begin() ? ranges.end() : std::prev(after);
  if ((before != ranges.end() && before->second > begin) ||
      (after != ranges.end() && after->first < end)) {
    return false;
  }
  if (after != ranges.end() && after->first == end) {
    end = after->second;
    ranges.erase(after);
  }
  if (before != ranges.end() && before->second == begin) {
    before->second = end;
  } else {
    ranges[begin] = end;
  }
  return true;
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(const PeerAddress& peer, Shared shared, const Tuning& tuning,
                             Connection connection, UniqueFd wake)
    : peer_(peer),
      who_(absl::StrCat("verbs to node '", peer.node, "'")),
      shared_(std::move(shared)),
      tuning_(tuning),
      wake_(std::move(wake)),
      list_({tuning.list_requests, connection.pieces, tuning.chunk_bytes}) {
  uint32_t number = 0;
  for (ConnectedRail& connected : connection.rails) {
    Rail rail{connected.port,
              connected.device,
              rails_.size(),
              connected.name,
              shared_.rails->name(connected.port),
              std::move(connected.channel),
              std::move(connected.cq),
              {},
              true};
    for (QueuePair& qp : connected.pairs) {
      Pair pair;
      pair.qp = std::move(qp);
      pair.number = number++;
      pair.free = connection.requests;
      rail.pairs.push_back(std::move(pair));
      ++live_pairs_;
    }
    rails_.push_back(std::move(rail));
  }
  shared_.rails->Notify(wake_.get());
  ControlCalls::Options options;
  options.control = shared_.control;
  options.peer = peer;
  options.session = connection.session;
  options.rails = rails_.size();
  options.lease = connection.lease;
  options.call_timeout = connection.lease + kCallSlack;
  options.wake = wake_.get();
  calls_ = std::make_unique<ControlCalls>(std::move(options));
}

VerbsEndpoint::~VerbsEndpoint() {
  // The devices stop reading source memory here, before the peer is told.
  for (Rail& rail : rails_) {
    for (Pair& pair : rail.pairs) pair.qp.Reset();
  }
  shared_.rails->Forget(wake_.get());
  calls_.reset();
}

VerbsEndpoint::TransferState& VerbsEndpoint::StateOf(const SyncKey& sync,
                                                     const Transfer& transfer) {
  const TransferKey key{sync, transfer.id};
  std::unique_ptr<TransferState>& state = transfers_[key];
  if (state == nullptr) {
    state = std::make_unique<TransferState>();
    state->key = key;
    state->by_rail.resize(rails_.size());
    v1::VerbsTransfer request;
    request.set_sync_id(sync.sync_id);
    request.set_secret(sync.secret);
    request.set_transfer(transfer.id);
    request.set_bytes(transfer.bytes);
    calls_->Expose(request);
  }
  return *state;
}

absl::Status VerbsEndpoint::Usable() const {
  // Unavailable would invite the caller to try again.
  if (absl::IsUnavailable(status_)) return absl::AbortedError(status_.message());
  return status_;
}

absl::Status VerbsEndpoint::PostRange(const SendRange& range) {
  XFER_RETURN_IF_ERROR(Usable());
  if (absl::Status status = CheckRange(range); !status.ok()) return Annotate(status, who_);
  if (ranges_ + completions_.size() >= kMaxQueued) {
    return absl::UnavailableError(
        absl::StrCat(who_, ": ", kMaxQueued, " ranges are queued; Poll() first"));
  }
  if (absl::Status status = AddRange(StateOf(range.sync, *range.transfer), range); !status.ok()) {
    return Annotate(status, who_);
  }
  // Lets the NICs go on while the caller posts; small ranges wait for company, or for Poll().
  if (work_bytes_ >= tuning_.chunk_bytes || work_.size() >= tuning_.list_requests) Progress();
  return absl::OkStatus();
}

absl::Status VerbsEndpoint::AddRange(TransferState& state, const SendRange& range) {
  if (state.finishing) {
    return absl::InvalidArgumentError(
        absl::StrCat("a range of transfer ", range.transfer->id, " was posted after its finish"));
  }
  XFER_ASSIGN_OR_RETURN(
      std::shared_ptr<RegisteredMemory> source,
      range.unregistered
          ? shared_.memory->AddUnlisted({range.source.base + range.begin, range.end - range.begin})
          : shared_.memory->Find(range.source));
  if (!AddInterval(state.ranges, range.begin, range.end)) {
    return absl::InvalidArgumentError(absl::StrCat("range [", range.begin, ", ", range.end,
                                                   ") of transfer ", range.transfer->id,
                                                   " was posted before, in part or whole"));
  }
  if (!Outstanding()) progress_ = absl::Now();
  auto posted =
      std::make_shared<Posted>(Posted{range, std::move(source), &state, range.end - range.begin});
  ++ranges_;
  ++state.unacknowledged;
  if (!state.refused.ok()) {
    RangeDone(posted, state.refused);
  } else if (state.open) {
    Queue(posted, range.begin, range.end, /*front=*/false);
  } else {
    state.waiting.push_back(std::move(posted));
  }
  return absl::OkStatus();
}

void VerbsEndpoint::Queue(const PostedPtr& posted, uint64_t begin, uint64_t end, bool front) {
  Work work{posted, begin, end, RunCursor(posted->range.transfer->copies, Side::kSource),
            RunCursor(posted->state->destination.copies, Side::kDestination)};
  work.source.Seek(begin);
  work.destination.Seek(begin);
  work_bytes_ += end - begin;
  if (front) {
    work_.push_front(std::move(work));
  } else {
    work_.push_back(std::move(work));
  }
}

absl::Status VerbsEndpoint::PostFinish(const SyncKey& sync, const Transfer& transfer,
                                       uint64_t digest) {
  XFER_RETURN_IF_ERROR(Usable());
  TransferState& state = StateOf(sync, transfer);
  if (state.finishing) {
    return absl::InvalidArgumentError(
        absl::StrCat(who_, ": transfer ", transfer.id, " is being finished already"));
  }
  if (!Outstanding()) progress_ = absl::Now();
  state.finishing = true;
  state.digest = digest;
  ++finishes_;
  SendFinish(state);
  return absl::OkStatus();
}

void VerbsEndpoint::RangeDone(const PostedPtr& posted, const absl::Status& status) {
  TransferState& state = *posted->state;
  Completion completion;
  completion.transfer = posted->range.transfer->id;
  completion.begin = posted->range.begin;
  completion.end = posted->range.end;
  completion.status = status;
  completions_.push_back(std::move(completion));
  --ranges_;
  --state.unacknowledged;
  SendFinish(state);
}

// Says the finish if it is time to; the state may be gone afterwards.
void VerbsEndpoint::SendFinish(TransferState& state) {
  if (!state.finishing || state.finish_sent || state.unacknowledged > 0) return;
  if (!state.refused.ok()) return FinishDone(state, state.refused);
  if (!state.open) return;
  state.finish_sent = true;
  v1::VerbsFinished finish;
  finish.set_sync_id(state.key.sync.sync_id);
  finish.set_secret(state.key.sync.secret);
  finish.set_transfer(state.key.transfer);
  finish.set_digest(state.digest);
  for (const auto& [begin, end] : state.ranges) {
    v1::VerbsRange& range = *finish.add_ranges();
    range.set_begin(begin);
    range.set_end(end);
  }
  for (const auto& [pair, number] : state.notices) {
    v1::VerbsNotice& notice = *finish.add_notices();
    notice.set_queue_pair(pair);
    notice.set_number(number);
  }
  calls_->Finish(std::move(finish));
}

void VerbsEndpoint::FinishDone(TransferState& state, const absl::Status& status) {
  Completion completion;
  completion.transfer = state.key.transfer;
  completion.finish = true;
  completion.status = status;
  for (const Rail& rail : rails_) {
    const uint64_t bytes = state.by_rail[rail.index];
    if (bytes > 0) completion.by_rail.push_back({rail.short_name, bytes});
  }
  completions_.push_back(std::move(completion));
  --finishes_;
  transfers_.erase(TransferKey(state.key));
}

bool VerbsEndpoint::TakeControl() {
  const absl::Status status = calls_->Take(exposed_, finished_);
  const bool some = !exposed_.empty() || !finished_.empty();
  for (ExposeResult& result : exposed_) {
    const auto it = transfers_.find(result.key);
    if (it == transfers_.end()) continue;
    TransferState& state = *it->second;
    std::vector<PostedPtr> waiting = std::move(state.waiting);
    state.waiting.clear();
    if (result.destination.ok()) {
      state.open = true;
      state.destination = *std::move(result.destination);
      for (const PostedPtr& posted : waiting)
        Queue(posted, posted->range.begin, posted->range.end, false);
      SendFinish(state);
      continue;
    }
    state.refused = result.destination.status();
    if (waiting.empty()) {
      SendFinish(state);
      continue;
    }
    for (const PostedPtr& posted : waiting) RangeDone(posted, result.destination.status());
  }
  for (const FinishResult& result : finished_) {
    const auto it = transfers_.find(result.key);
    if (it != transfers_.end()) FinishDone(*it->second, result.status);
  }
  exposed_.clear();
  finished_.clear();
  if (!status.ok()) Fail(status);
  return some;
}

absl::Status VerbsEndpoint::Poll(absl::Duration timeout, std::vector<Completion>& out) {
  XFER_RETURN_IF_ERROR(status_);
  const absl::Time deadline = absl::Now() + timeout;
  absl::Time spin_until = absl::Now() + tuning_.spin;
  while (true) {
    const bool moved = Progress();
    const absl::Time now = absl::Now();
    if (moved) {
      progress_ = now;
      spin_until = now + tuning_.spin;
    }
    CheckStall(now);
    if (!completions_.empty() || !status_.ok() || now >= deadline) break;
    if (Outstanding() && now < spin_until) continue;
    Sleep(deadline);
  }
  std::move(completions_.begin(), completions_.end(), std::back_inserter(out));
  completions_.clear();
  return status_;
}

void VerbsEndpoint::CheckStall(absl::Time now) {
  if (!Outstanding() || now - progress_ < tuning_.stall_timeout + kCallSlack) return;
  Fail(absl::DeadlineExceededError(
      absl::StrCat("nothing has moved for ", absl::FormatDuration(now - progress_), " with ",
                   ranges_, " ranges and ", finishes_,
                   " finishes outstanding; is the peer's agent overloaded or stopped?")));
}

void VerbsEndpoint::Fail(const absl::Status& status) {
  if (!status_.ok()) return;
  status_ = Annotate(status, who_);
  // What has failed is not to be read from any more, for its owner takes it back.
  for (Rail& rail : rails_) {
    for (Pair& pair : rail.pairs) pair.qp.Reset();
    rail.live = false;
  }
}

}  // namespace xfer::verbs
