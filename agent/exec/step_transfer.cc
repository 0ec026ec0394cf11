// TRANSFER: everything that this node sends is acknowledged, everything that it expects has arrived
// and was checked, or has failed.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/exec/executor.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

// Then a sender lets the pool's next one run.
constexpr absl::Duration kSenderQuantum = absl::Milliseconds(50);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
constexpr size_t kTimingsPerBatch = 2000;
constexpr absl::Duration kReportTimeout = absl::Seconds(30);

// The literal for a transport's name.
const char* LiteralOf(const Transport& transport) {
  for (const char* name : {"local", "verbs", "tcp"}) {
    if (transport.name() == name) return name;
  }
  return "other";
}

int64_t OnAxis(int64_t own_ns, int64_t offset_ns) { return own_ns == 0 ? 0 : own_ns + offset_ns; }

}  // namespace

SyncExecutor::SenderCount SyncExecutor::StartSenders(const RunPtr& run, absl::Time deadline) {
  SyncSetup& setup = run->setup;
  auto job = std::make_shared<SendJob>();
  job->key = setup.key;
  job->verify = setup.verify;
  job->part = setup.part;
  job->pins = setup.pins;
  job->failures = run->failures;
  job->receive = run->receive;
  job->ledger = run->ledger;
  job->chunk_bytes = options_.chunk_bytes;
  job->inflight_bytes = options_.inflight_bytes;
  job->deadline = deadline;
  job->clock = options_.clock;

  auto left = std::make_shared<std::atomic<int>>(0);
  std::vector<std::pair<std::shared_ptr<PeerSender>, SenderDone>> senders;
  const size_t stagger = absl::HashOf(options_.node);
  for (PeerRoute& route : setup.routes) {
    for (PeerRoute::Lane& lane : route.lanes) {
      if (lane.transfers.empty()) continue;
      auto connect = [this, peer = route.peer, transport = route.transport](absl::Time limit) {
        return endpoints_->Open(peer, *transport, limit);
      };
      auto sender =
          std::make_shared<PeerSender>(job, LiteralOf(*route.transport), std::move(lane.endpoint),
                                       std::move(connect), lane.transfers, stagger);
      auto done = [this, left, peer = route.peer, transport = route.transport](
                      SyncRun& of, PeerSender& finished) {
        if (std::unique_ptr<Endpoint> endpoint = finished.TakeEndpoint()) {
          endpoints_->Keep(peer, *transport, std::move(endpoint));
        }
        left->fetch_sub(1);
        of.Changed();
      };
      senders.emplace_back(std::move(sender), std::move(done));
    }
  }
  left->store(static_cast<int>(senders.size()));
  auto done_of = std::make_shared<absl::flat_hash_map<PeerSender*, SenderDone>>();
  for (auto& [sender, done] : senders) (*done_of)[sender.get()] = done;
  run->StartSending(
      job, [this, weak = std::weak_ptr<SyncRun>(run), done_of](std::shared_ptr<PeerSender> sender) {
        const RunPtr run = weak.lock();
        if (run == nullptr) return;
        senders_.Submit([this, run, done_of, sender = std::move(sender)] {
          RunSender(run, sender, done_of->at(sender.get()));
        });
      });
  std::rotate(
      senders.begin(),
      senders.begin() + static_cast<ptrdiff_t>(senders.empty() ? 0 : stagger % senders.size()),
      senders.end());
  for (auto& [sender, done] : senders) {
    senders_.Submit([this, run, sender = sender, done = done] { RunSender(run, sender, done); });
  }
  return left;
}

void SyncExecutor::RunSender(const RunPtr& run, const std::shared_ptr<PeerSender>& sender,
                             const SenderDone& done) {
  // Read first: what changes while the sender looks around must wake it again.
  const uint64_t epoch = run->epoch();
  switch (sender->Run(kSenderQuantum)) {
    case PeerSender::State::kMore:
      senders_.Submit([this, run, sender, done] { RunSender(run, sender, done); });
      break;
    case PeerSender::State::kParked:
      run->Park(sender, epoch);
      break;
    case PeerSender::State::kDone:
      done(*run, *sender);
      break;
  }
}

bool SyncExecutor::AwaitTransfers(SyncRun& run, const SenderCount& senders, absl::Time deadline) {
  const auto settled = [&] { return senders->load() == 0 && run.receive->Settled(); };
  uint64_t told = 0;
  while (!run.WaitFor(settled, std::min(deadline, absl::Now() + kProgressInterval))) {
    if (run.stopped() || absl::Now() >= deadline) return false;
    run.receive->FailStalled(options_.receive_stall);
    const uint64_t bytes = run.receive->bytes_done();
    if (bytes == told) continue;
    told = bytes;
    v1::AgentEvent event;
    event.mutable_progress()->set_sync_id(run.sync_id());
    event.mutable_progress()->set_bytes_done(bytes);
    link_->Send(std::move(event));
  }
  return true;
}

void SyncExecutor::FailUnsent(SyncRun& run, const absl::Status& cause) {
  absl::flat_hash_set<uint32_t> sent;
  for (const SentTransfer& transfer : run.ledger->Transfers()) sent.insert(transfer.transfer);
  const PlanPart& part = *run.setup.part;
  for (uint32_t i = 0; i < part.transfers.size(); ++i) {
    const PartTransfer& transfer = part.transfers[i];
    if (!transfer.sends || sent.contains(i)) continue;
    if (!run.failures->Failed(transfer.planned.destination)) run.failures->FailTransfer(i, cause);
  }
}

void SyncExecutor::TransferAll(const RunPtr& run, const v1::Step& step, absl::Time deadline,
                               v1::StepResult& result) {
  // A node none of whose ranks pauses may not have been asked to, nor to connect.
  absl::Status ready = EnsureConnected(*run, step, deadline);
  if (ready.ok()) ready = BeginReceive(*run, deadline);
  if (!ready.ok()) {
    *result.mutable_outcome() = ToOutcome(ready);
    return;
  }
  run->receive->Start();
  const SenderCount senders = StartSenders(run, deadline);
  const bool settled = AwaitTransfers(*run, senders, deadline);
  if (run->stopped()) {
    run->failures->FailAll(run->stop_reason());
  } else if (!settled) {
    FailUnsent(*run, absl::DeadlineExceededError("not acknowledged before the deadline"));
    run->receive->FailMissing(absl::DeadlineExceededError("not arrived before the deadline"));
  }
  FillTransferResult(*run, result);
}

void SyncExecutor::FillTransferResult(const SyncRun& run, v1::StepResult& result) {
  const PlanPart& part = *run.setup.part;
  const int64_t offset = link_->ClockOffsetNanos();
  *result.mutable_outcome() = ToOutcome(run.failures->first());
  const auto add_timing = [&](int32_t rank, int64_t first, int64_t last) {
    v1::RankTiming* timing = result.add_timings();
    *timing->mutable_id() = ToProto(part.ranks[rank].id);
    timing->set_node(options_.node);
    timing->set_start_ns(OnAxis(first, offset));
    timing->set_end_ns(OnAxis(last, offset));
    return timing;
  };
  int64_t last_byte = 0;
  for (const ReceivedByRank& received : run.receive->Totals()) {
    v1::RankTiming* timing = add_timing(received.rank, received.first_ns, received.last_ns);
    timing->set_bytes(received.bytes);
    timing->set_transfers(received.transfers);
    timing->set_digest_ns(received.digest_ns);
    timing->mutable_bytes_by_transport()->insert(received.bytes_by_transport.begin(),
                                                 received.bytes_by_transport.end());
    last_byte = std::max(last_byte, received.last_ns);
  }
  int64_t first_byte = 0;
  for (const auto& [rank, sent] : run.ledger->ByRank()) {
    v1::RankTiming* timing = add_timing(rank, sent.first_ns, sent.last_ns);
    timing->set_bytes(sent.bytes);
    timing->set_transfers(sent.transfers);
    timing->set_retries(sent.retries);
    timing->set_digest_ns(sent.digest_ns);
    timing->mutable_bytes_by_transport()->insert(sent.bytes_by_transport.begin(),
                                                 sent.bytes_by_transport.end());
    if (sent.first_ns != 0 && (first_byte == 0 || sent.first_ns < first_byte)) {
      first_byte = sent.first_ns;
    }
  }
  // Every rollout rank of this node is judged; silence about one would not be believed.
  for (size_t i = 0; i < part.ranks.size(); ++i) {
    const PartRank& rank = part.ranks[i];
    if (!rank.local || rank.id.role != Role::kRollout) continue;
    v1::RankOutcome* out = result.add_ranks();
    *out->mutable_id() = ToProto(rank.id);
    *out->mutable_outcome() = ToOutcome(run.failures->StatusOf(static_cast<int32_t>(i)));
  }
  for (v1::TransferFailure& failure : run.failures->Report()) {
    *result.add_failures() = std::move(failure);
  }
  result.set_first_byte_ns(OnAxis(first_byte, offset));
  result.set_last_byte_ns(OnAxis(last_byte, offset));
}

void SyncExecutor::ReportTimings(const SyncRun& run) {
  if (run.ledger == nullptr) return;
  const std::vector<SentTransfer> sent = run.ledger->Transfers();
  if (sent.empty()) return;
  const PlanPart& part = *run.setup.part;
  const int64_t offset = link_->ClockOffsetNanos();
  std::vector<v1::TransferTimings> batches;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (i % kTimingsPerBatch == 0) {
      batches.emplace_back().set_sync_id(run.sync_id());
      batches.back().set_node(options_.node);
    }
    const Transfer& transfer = part.transfers[sent[i].transfer].planned;
    v1::TransferTiming* timing = batches.back().add_transfers();
    timing->set_transfer(transfer.id);
    timing->set_start_ns(OnAxis(sent[i].start_ns, offset));
    timing->set_end_ns(OnAxis(sent[i].end_ns, offset));
    timing->set_bytes(transfer.bytes);
    timing->set_transport(sent[i].route());
    timing->set_retries(sent[i].retries);
    *timing->mutable_source() = ToProto(part.ranks[transfer.source].id);
    *timing->mutable_destination() = ToProto(part.ranks[transfer.destination].id);
  }
  const absl::Status status = link_->ReportTimings(batches, absl::Now() + kReportTimeout);
  if (!status.ok()) {
    spdlog::warn("sync {}: timings were not reported: {}", run.sync_id(), status.ToString());
  }
}

}  // namespace xfer
