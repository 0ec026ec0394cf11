#include "agent/exec/sync_receive.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/exec/transfer_digest.h"
#include "common/base/digest.h"

namespace xfer {

SyncReceive::SyncReceive(Options options)
    : options_(std::move(options)),
      states_(options_.part->transfers.size()),
      ranks_(options_.part->ranks.size()) {
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i].totals.rank = static_cast<int32_t>(i);
  for (const PartTransfer& transfer : options_.part->transfers) {
    if (!transfer.receives) continue;
    Rank& rank = ranks_[transfer.planned.destination];
    ++rank.totals.expected;
    rank.missing.fetch_add(1, std::memory_order_relaxed);
  }
  Start();
}

void SyncReceive::Start() {
  const int64_t now = options_.clock->MonotonicNanos();
  for (Rank& rank : ranks_) rank.progress_ns.store(now, std::memory_order_relaxed);
}

absl::StatusOr<uint32_t> SyncReceive::Expected(TransferId id) const {
  const std::optional<uint32_t> index = options_.part->Find(id);
  if (!index.has_value() || !options_.part->transfers[*index].receives) {
    // The same words as for an unknown sync or a wrong secret: a stranger learns nothing.
    return absl::NotFoundError("no such transfer is expected here");
  }
  return *index;
}

absl::StatusOr<ReceiveTable::Target> SyncReceive::Enter(TransferId id) {
  absl::StatusOr<uint32_t> index = Expected(id);
  if (!index.ok()) return index.status();
  const PartTransfer& transfer = options_.part->transfers[*index];
  const int32_t destination = transfer.planned.destination;
  // Counted before the check: whoever closes and then sees no writer knows that none can come.
  writers_.fetch_add(1);
  absl::Status refused;
  if (closed()) {
    refused = absl::FailedPreconditionError(
        absl::StrCat("sync ", options_.key.sync_id, " takes no more bytes; it has ended here"));
  } else if (options_.pins[destination]->gone()) {
    refused = absl::FailedPreconditionError(
        absl::StrCat(options_.part->ranks[destination].id.ToString(), " (node ",
                     options_.part->ranks[destination].node, ") has gone"));
  } else if (options_.failures->Failed(destination)) {
    refused = absl::FailedPreconditionError(absl::StrCat(
        options_.part->ranks[destination].id.ToString(), " takes no more bytes of sync ",
        options_.key.sync_id, ": ", options_.failures->StatusOf(destination).message()));
  }
  if (!refused.ok()) {
    Leave();
    return refused;
  }
  Rank& rank = ranks_[destination];
  int64_t none = 0;
  if (rank.first_ns.load(std::memory_order_relaxed) == 0) {
    rank.first_ns.compare_exchange_strong(none, options_.clock->MonotonicNanos());
  }
  return ReceiveTable::Target{
      &transfer.wire(), options_.pins[destination]->region(transfer.planned.destination_region)};
}

void SyncReceive::Leave() {
  if (writers_.fetch_sub(1) == 1 && closed()) options_.on_change();
}

bool SyncReceive::Writes(const RankPin& pin) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.totals.expected > 0 && options_.pins[rank.totals.rank] == pin;
  });
}

bool SyncReceive::Overlaps(const SyncReceive& other) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.totals.expected > 0 && other.Writes(options_.pins[rank.totals.rank]);
  });
}

uint64_t SyncReceive::Digest(uint32_t index, uint64_t begin, uint64_t end) {
  const PartTransfer& transfer = options_.part->transfers[index];
  if (!IsVerified(options_.verify, options_.key.sync_id, transfer)) return 0;
  const int32_t destination = transfer.planned.destination;
  const Memory memory = options_.pins[destination]->region(transfer.planned.destination_region);
  const int64_t start = options_.clock->MonotonicNanos();
  const uint64_t digest =
      DigestOfTransfer(transfer.wire(), TransferSide::kDestination, memory.base, begin, end);
  ranks_[destination].digest_ns.fetch_add(options_.clock->MonotonicNanos() - start,
                                          std::memory_order_relaxed);
  return digest;
}

void SyncReceive::Arrived(TransferId id, uint64_t begin, uint64_t end) {
  absl::StatusOr<uint32_t> index = Expected(id);
  if (!index.ok()) return;
  const Transfer& transfer = options_.part->transfers[*index].planned;
  if (begin % kDigestLeafBytes != 0 || begin >= end || end > transfer.bytes ||
      (end % kDigestLeafBytes != 0 && end != transfer.bytes)) {
    options_.failures->FailTransfer(
        *index, absl::InternalError(absl::StrCat(
                    "a transport reported arrival of [", begin, ", ", end, ") of ", transfer.bytes,
                    " bytes, which is not cut at leaves of ", kDigestLeafBytes)));
    return;
  }
  ranks_[transfer.destination].progress_ns.store(options_.clock->MonotonicNanos(),
                                                 std::memory_order_relaxed);
  if (options_.failures->Failed(transfer.destination)) return;
  const uint64_t digest = Digest(*index, begin, end);
  State& state = states_[*index];
  absl::MutexLock lock(&state.mu);
  Insert(*index, state, begin, end, digest);
}

void SyncReceive::Insert(uint32_t index, State& state, uint64_t begin, uint64_t end,
                         uint64_t digest) {
  // Of what stood there, parts outside the new range are kept; they are all cut at leaves.
  auto at = state.ranges.upper_bound(begin);
  if (at != state.ranges.begin() && std::prev(at)->second.end > begin) --at;
  while (at != state.ranges.end() && at->first < end) {
    const uint64_t old_begin = at->first;
    const uint64_t old_end = at->second.end;
    state.ranges.erase(at);
    state.covered -= old_end - old_begin;
    if (old_begin < begin) {
      state.ranges[old_begin] = {begin, Digest(index, old_begin, begin)};
      state.covered += begin - old_begin;
    }
    if (old_end > end) {
      state.ranges[end] = {old_end, Digest(index, end, old_end)};
      state.covered += old_end - end;
    }
    at = state.ranges.lower_bound(begin);
  }
  state.ranges[begin] = {end, digest};
  state.covered += end - begin;
}

absl::Status SyncReceive::Check(uint32_t index, uint64_t digest) {
  const PartTransfer& transfer = options_.part->transfers[index];
  State& state = states_[index];
  absl::MutexLock lock(&state.mu);
  if (state.covered != transfer.planned.bytes) {
    return absl::DataLossError(
        absl::StrCat(options_.part->Describe(transfer.planned), ": ",
                     transfer.planned.bytes - state.covered, " of ", transfer.planned.bytes,
                     " bytes did not arrive: the sender gave up, or they were lost"));
  }
  uint64_t sum = 0;
  for (const auto& [begin, range] : state.ranges) sum += range.digest;
  if (IsVerified(options_.verify, options_.key.sync_id, transfer) && sum != digest) {
    return absl::DataLossError(absl::StrCat(
        options_.part->Describe(transfer.planned), ": digest ", absl::Hex(sum, absl::kZeroPad16),
        " differs from the source's ", absl::Hex(digest, absl::kZeroPad16),
        ": the bytes were damaged on the way, or the source changed"));
  }
  state.ranges.clear();
  state.covered = 0;
  return absl::OkStatus();
}

absl::Status SyncReceive::Finished(TransferId id, uint64_t digest, absl::string_view transport) {
  absl::StatusOr<uint32_t> index = Expected(id);
  if (!index.ok()) return index.status();
  const int32_t destination = options_.part->transfers[*index].planned.destination;
  if (closed()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sync ", options_.key.sync_id, " has ended here"));
  }
  if (options_.failures->Failed(destination)) return options_.failures->StatusOf(destination);
  absl::Status status = Check(*index, digest);
  if (!status.ok()) {
    options_.failures->FailTransfer(*index, status);
    return status;
  }
  MarkDone(*index, transport);
  return absl::OkStatus();
}

void SyncReceive::MarkDone(uint32_t index, absl::string_view transport) {
  const Transfer& transfer = options_.part->transfers[index].planned;
  Rank& rank = ranks_[transfer.destination];
  {
    absl::MutexLock lock(&totals_mu_);
    if (states_[index].done.load(std::memory_order_relaxed)) return;  // sent again, and well again
    rank.totals.bytes += transfer.bytes;
    ++rank.totals.transfers;
    rank.totals.last_ns = options_.clock->MonotonicNanos();
    rank.totals.bytes_by_transport[std::string(transport)] += transfer.bytes;
    states_[index].done.store(true, std::memory_order_release);
  }
  bytes_done_.fetch_add(transfer.bytes, std::memory_order_relaxed);
  const bool last = rank.missing.fetch_sub(1, std::memory_order_acq_rel) == 1;
  arrivals_.fetch_add(1, std::memory_order_release);
  // Nobody waits for a single one, unless it is to be passed on.
  if (last || options_.part->relays) options_.on_change();
}

bool SyncReceive::Settled() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return rank.missing.load(std::memory_order_acquire) == 0 ||
           options_.failures->Failed(rank.totals.rank);
  });
}

std::string SyncReceive::Missing(const Rank& rank, uint32_t* first) const {
  for (uint32_t i = 0; i < states_.size(); ++i) {
    const PartTransfer& transfer = options_.part->transfers[i];
    if (!transfer.receives || transfer.planned.destination != rank.totals.rank || Done(i)) continue;
    *first = i;
    break;
  }
  return absl::StrCat(rank.missing.load(), " of ", rank.totals.expected, " transfers to ",
                      options_.part->ranks[rank.totals.rank].id.ToString(), " are missing");
}

absl::Status SyncReceive::Complete(int32_t index) const {
  const Rank& rank = ranks_[index];
  if (options_.failures->Failed(index)) return options_.failures->StatusOf(index);
  if (rank.missing.load(std::memory_order_acquire) == 0) return absl::OkStatus();
  uint32_t first = 0;
  return absl::FailedPreconditionError(Missing(rank, &first));
}

void SyncReceive::FailStalled(absl::Duration limit) {
  const int64_t now = options_.clock->MonotonicNanos();
  for (const Rank& rank : ranks_) {
    if (rank.missing.load(std::memory_order_acquire) == 0 ||
        options_.failures->Failed(rank.totals.rank) ||
        now - rank.progress_ns.load(std::memory_order_relaxed) <= absl::ToInt64Nanoseconds(limit)) {
      continue;
    }
    uint32_t first = 0;
    const std::string missing = Missing(rank, &first);
    options_.failures->FailTransfer(
        first, absl::DeadlineExceededError(absl::StrCat("nothing has arrived for ",
                                                        absl::FormatDuration(limit), ", and ",
                                                        missing, "; is the source's node alive?")));
  }
}

void SyncReceive::FailMissing(const absl::Status& cause) {
  for (const Rank& rank : ranks_) {
    if (rank.missing.load(std::memory_order_acquire) == 0 ||
        options_.failures->Failed(rank.totals.rank)) {
      continue;
    }
    uint32_t first = 0;
    const std::string missing = Missing(rank, &first);
    options_.failures->FailTransfer(
        first, absl::Status(cause.code(), absl::StrCat(cause.message(), "; ", missing)));
  }
}

std::vector<ReceivedByRank> SyncReceive::Totals() const {
  absl::MutexLock lock(&totals_mu_);
  std::vector<ReceivedByRank> totals;
  for (const Rank& rank : ranks_) {
    if (rank.totals.expected == 0) continue;
    ReceivedByRank& out = totals.emplace_back(rank.totals);
    out.first_ns = rank.first_ns.load(std::memory_order_relaxed);
    out.digest_ns = rank.digest_ns.load(std::memory_order_relaxed);
  }
  return totals;
}

}  // namespace xfer
