// The part of VerbsEndpoint that talks to the devices.
#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/endpoint.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer::verbs {
namespace {

// Errors that would come again on any rail: they are about memory and its keys.
bool IsFinal(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_MW_BIND_ERR:
    case IBV_WC_BAD_RESP_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_REM_ACCESS_ERR:
      return true;
    default:
      return false;
  }
}

const char* WhatToCheck(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer does not answer: is its agent running and its port up, do routes and "
             "firewalls let UDP "
             "port 4791 (RoCE) through, is the path's MTU as large, is PFC or ECN set up?";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer has no receive request left: is its agent stopped or overloaded?";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer refused the key or address: has the destination's rank left, or its agent "
             "restarted?";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return "this device refused the source memory: was it unregistered while it was being sent?";
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return "the peer's device refused the request: see dmesg there";
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair had failed: see this agent's log for the event before";
    default:
      return "see dmesg here and at the peer";
  }
}

}  // namespace

bool VerbsEndpoint::Progress() {
  if (!status_.ok()) return false;
  bool moved = TakeControl();
  CheckPorts();
  for (Rail& rail : rails_) {
    if (rail.live) moved |= PollRail(rail);
  }
  moved |= PostLists();
  return moved;
}

void VerbsEndpoint::CheckPorts() {
  for (Rail& rail : rails_) {
    if (rail.live && !shared_.rails->usable(rail.port)) {
      GiveUp(rail, "the port is down; check the link (rdma link) and its cable");
    }
  }
}

bool VerbsEndpoint::PollRail(Rail& rail) {
  std::array<ibv_wc, 32> buffer;
  bool moved = false;
  while (rail.live) {
    const absl::StatusOr<absl::Span<const ibv_wc>> completions =
        rail.cq.Poll(absl::MakeSpan(buffer));
    if (!completions.ok()) {
      GiveUp(rail, std::string(completions.status().message()));
      return true;
    }
    for (const ibv_wc& completion : *completions) {
      if (completion.status == IBV_WC_SUCCESS) {
        Acknowledged(rail, rail.pairs[completion.wr_id]);
      } else {
        Failed(rail, completion);
        return true;
      }
    }
    moved |= !completions->empty();
    if (completions->size() < buffer.size()) break;
  }
  return moved;
}

// The oldest list of a queue pair is done: only the last request of each is signalled, and they
// complete in order.
void VerbsEndpoint::Acknowledged(const Rail& rail, Pair& pair) {
  const Sent sent = std::move(pair.sent.front());
  pair.sent.pop_front();
  pair.free += sent.requests;
  pair.bytes -= sent.bytes;
  for (const Part& part : sent.parts) {
    auto& notices = part.posted->state->notices;
    auto it = std::find_if(notices.begin(), notices.end(),
                           [&](const auto& entry) { return entry.first == pair.number; });
    if (it == notices.end()) {
      notices.push_back({pair.number, sent.notice});
    } else {
      it->second = sent.notice;
    }
    part.posted->state->by_rail[rail.index] += part.end - part.begin;
    part.posted->unacknowledged -= part.end - part.begin;
    if (part.posted->unacknowledged == 0) RangeDone(part.posted, absl::OkStatus());
  }
}

void VerbsEndpoint::Failed(Rail& rail, const ibv_wc& completion) {
  const std::string why = absl::StrCat(
      ibv_wc_status_str(completion.status), " (status ", static_cast<int>(completion.status),
      ", vendor ", completion.vendor_err, "): ", WhatToCheck(completion.status));
  if (IsFinal(completion.status)) {
    Fail(absl::FailedPreconditionError(absl::StrCat(rail.name, ": ", why)));
  } else {
    GiveUp(rail, why);
  }
}

// Leaves a rail. What was not acknowledged on it goes to the front of the queue, for the other
// rails; what was acknowledged has its notice at the receiver already.
void VerbsEndpoint::GiveUp(Rail& rail, const std::string& why) {
  if (!rail.live) return;
  rail.live = false;
  live_pairs_ -= rail.pairs.size();
  uint64_t bytes = 0;
  for (Pair& pair : rail.pairs) {
    // Destroyed first: two rails must not write the same bytes at the same time, and the source of
    // a range that is completed by another rail must not be read any more.
    pair.qp.Reset();
    // The receiver makes its end harmless before it answers a finish: a write that is still on the
    // wire would otherwise come after the transfer was found to be done.
    calls_->GiveUp(pair.number);
    for (auto sent = pair.sent.rbegin(); sent != pair.sent.rend(); ++sent) {
      bytes += sent->bytes;
      for (auto part = sent->parts.rbegin(); part != sent->parts.rend(); ++part) {
        Queue(part->posted, part->begin, part->end, /*front=*/true);
      }
    }
    pair.sent.clear();
    pair.bytes = 0;
  }
  if (live_pairs_ > 0) {
    spdlog::warn("{}: rail {} is given up: {}; {} bytes go again by the other rails", who_,
                 rail.name, why, bytes);
    return;
  }
  Fail(absl::UnavailableError(absl::StrCat(rail.name, ": ", why)));
}

// The connection with the fewest bytes under way; a NIC that is farther from the source than it
// need be counts as if it had some lists more, so it takes part when the near ones are that far
// behind.
VerbsEndpoint::Pair* VerbsEndpoint::PickPair(Rail*& rail) {
  const RegisteredMemory& source = *work_.front().posted->source;
  Pair* best = nullptr;
  uint64_t least = 0;
  for (Rail& candidate : rails_) {
    if (!candidate.live) continue;
    const uint64_t distance =
        static_cast<uint64_t>(source.nearness(candidate.device)) * tuning_.list_bytes;
    for (Pair& pair : candidate.pairs) {
      if (pair.free == 0 || pair.bytes >= tuning_.queue_bytes) continue;
      if (best != nullptr && pair.bytes + distance >= least) continue;
      best = &pair;
      least = pair.bytes + distance;
      rail = &candidate;
    }
  }
  return best;
}

bool VerbsEndpoint::PostLists() {
  bool moved = false;
  while (!work_.empty() && status_.ok()) {
    Rail* rail = nullptr;
    Pair* const pair = PickPair(rail);
    if (pair == nullptr || !PostList(*rail, *pair)) break;
    moved = true;
  }
  return moved;
}

bool VerbsEndpoint::PostList(Rail& rail, Pair& pair) {
  // Little work is spread over all queue pairs rather than given to one.
  const uint64_t share = std::max(tuning_.chunk_bytes, work_bytes_ / live_pairs_);
  const uint64_t limit = std::min({share, tuning_.list_bytes, tuning_.queue_bytes - pair.bytes});
  Sent sent;
  list_.Start(pair.free);
  while (!work_.empty() && sent.bytes < limit) {
    Work& work = work_.front();
    const RegisteredMemory& source = *work.posted->source;
    if (source.dropped()) {
      Fail(absl::FailedPreconditionError(
          absl::StrCat("the source memory of transfer ", work.posted->range.transfer->id,
                       " was unregistered while it was being sent")));
      return false;
    }
    const WriteList::Way way{work.posted->range.source.base,
                             source.memory(),
                             source.piece_bytes(),
                             source.keys(rail.device),
                             &work.posted->state->destination,
                             rail.index};
    const uint64_t wanted = std::min(work.end - work.begin, limit - sent.bytes);
    const uint64_t added = list_.Add(way, work.source, work.destination, wanted);
    if (added > 0) sent.parts.push_back({work.posted, work.begin, work.begin + added});
    sent.bytes += added;
    work_bytes_ -= added;
    work.begin += added;
    if (work.begin == work.end) work_.pop_front();
    if (added < wanted) break;
  }
  if (list_.requests() == 0) return false;
  sent.requests = static_cast<uint32_t>(list_.requests());
  sent.notice = ++pair.notices;
  pair.free -= sent.requests;
  pair.bytes += sent.bytes;
  ibv_send_wr* bad = nullptr;
  const uint64_t id = static_cast<uint64_t>(&pair - rail.pairs.data());
  const int error = pair.qp.PostSend(list_.Finish(id, sent.notice), &bad);
  pair.sent.push_back(std::move(sent));
  if (error != 0) {
    GiveUp(rail, absl::StrCat("ibv_post_send: ", std::generic_category().message(error)));
  }
  return true;
}

void VerbsEndpoint::Sleep(absl::Time until) {
  for (Rail& rail : rails_) {
    if (!rail.live) continue;
    if (const absl::Status status = rail.cq.Arm(); !status.ok())
      GiveUp(rail, std::string(status.message()));
  }
  // What came before the queues were armed is not told of.
  if (Progress()) {
    progress_ = absl::Now();
    return;
  }
  if (!status_.ok() || !completions_.empty()) return;
  fds_.clear();
  for (const Rail& rail : rails_) {
    if (rail.live) fds_.push_back({rail.channel.fd(), POLLIN, 0});
  }
  fds_.push_back({wake_.get(), POLLIN, 0});
  if (Outstanding()) until = std::min(until, progress_ + tuning_.stall_timeout * 2);
  const timespec wait =
      absl::ToTimespec(std::clamp(until - absl::Now(), absl::ZeroDuration(), absl::Hours(1)));
  const int ready = ppoll(fds_.data(), fds_.size(), &wait, nullptr);
  if (ready <= 0) return;
  for (const Rail& rail : rails_) {
    if (rail.live) rail.cq.TakeEvents();
  }
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
}

}  // namespace xfer::verbs
