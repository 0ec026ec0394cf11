#include "agent/transport/verbs/session.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/exposure.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/rpc/status.h"
#include "spdlog/spdlog.h"

namespace xfer::verbs {
namespace {

// A sender has no use for more; without bounds a peer could make this process hold any number.
constexpr int kMaxRails = 64;
constexpr int kMaxPairs = 64;  // of a rail
constexpr uint32_t kMaxReceiveRequests = 4096;
constexpr size_t kMaxExposed = 1 << 20;
constexpr uint32_t kPsnMask = 0xffffff;

TransferKey KeyOf(uint64_t sync_id, uint64_t secret, uint32_t transfer) {
  return {SyncKey{sync_id, secret}, transfer};
}

}  // namespace

absl::StatusOr<std::shared_ptr<Session>> Session::Open(uint64_t id, const v1::VerbsConnect& request,
                                                       std::shared_ptr<Rails> rails,
                                                       const Tuning& tuning, ReceiveTable* table,
                                                       v1::VerbsConnectReply& reply) {
  if (request.rails_size() < 1 || request.rails_size() > kMaxRails ||
      request.receive_requests() < 1 || request.receive_requests() > kMaxReceiveRequests) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connect with ", request.rails_size(), " rails and ", request.receive_requests(),
        " receive requests; at most ", kMaxRails, " and ", kMaxReceiveRequests));
  }
  std::shared_ptr<Session> session(new Session(id, request.node(), std::move(rails), table));
  for (const v1::VerbsRail& rail : request.rails()) {
    XFER_RETURN_IF_ERROR(session->OpenRail(rail, request.receive_requests(), tuning, reply));
  }
  reply.set_session(id);
  return session;
}

Session::~Session() { Close(absl::CancelledError("the session has ended")); }

absl::Status Session::OpenRail(const v1::VerbsRail& request, uint32_t receive_requests,
                               const Tuning& tuning, v1::VerbsConnectReply& reply) {
  const int pairs = request.queue_pairs_size();
  if (pairs < 1 || pairs > kMaxPairs || request.gid().size() != sizeof(ibv_gid) ||
      request.number() > 255) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a rail with ", pairs, " queue pairs and a GID of ", request.gid().size(), " bytes"));
  }
  XFER_ASSIGN_OR_RETURN(
      const size_t index,
      rails_handle_->Find(request.device(), static_cast<uint8_t>(request.number())));
  XFER_ASSIGN_OR_RETURN(const Port port, rails_handle_->Query(index));
  const size_t device = rails_handle_->device_of(index);
  const Rails::Device& owner = rails_handle_->devices()[device];
  XFER_ASSIGN_OR_RETURN(CompletionChannel channel, CompletionChannel::Create(owner.context));
  XFER_ASSIGN_OR_RETURN(
      CompletionQueue cq,
      CompletionQueue::Create(owner.context, pairs * static_cast<int>(receive_requests), channel));
  auto rail =
      std::make_unique<Rail>(Rail{port.ToString(), std::move(channel), std::move(cq), {}, 0});
  rail->first = rails_.empty() ? 0 : rails_.back()->first + rails_.back()->pairs.size();
  Path path;
  path.port = port.number;
  path.global = port.ethernet || request.lid() == 0;
  path.gid_index = request.gid_index();
  std::memcpy(path.remote_gid.raw, request.gid().data(), sizeof(ibv_gid));
  path.remote_lid = static_cast<uint16_t>(request.lid());
  path.mtu = std::min(request.mtu(), port.active_mtu);
  path.traffic_class = static_cast<uint8_t>(tuning.traffic_class);
  path.service_level = static_cast<uint8_t>(tuning.service_level);
  for (const v1::VerbsQueuePair& theirs : request.queue_pairs()) {
    QueuePair::Sizes sizes;
    sizes.receive_requests = receive_requests;
    XFER_ASSIGN_OR_RETURN(QueuePair qp, QueuePair::Create(owner.pd, rail->cq, sizes));
    path.remote_qp = theirs.number();
    path.remote_psn = theirs.first_psn() & kPsnMask;
    XFER_RETURN_IF_ERROR(
        Annotate(qp.ToReceive(path, /*target=*/true), absl::StrCat("port ", rail->name)));
    for (uint32_t i = 0; i < receive_requests; ++i) {
      XFER_RETURN_IF_ERROR(qp.PostReceive(rail->pairs.size()));
    }
    v1::VerbsQueuePair& mine = *reply.add_queue_pairs();
    mine.set_number(qp.number());
    // Nothing is ever sent from here but acknowledgements, so this side's numbers do not matter.
    mine.set_first_psn(0);
    rail->pairs.push_back({std::move(qp), 0, receive_requests, false});
  }
  XFER_RETURN_IF_ERROR(rail->cq.Arm());
  rails_.push_back(std::move(rail));
  devices_.push_back(device);
  return absl::OkStatus();
}

absl::Status Session::Expose(const v1::VerbsExpose& request, const MemoryTable& memory,
                             v1::VerbsExposeReply& reply) {
  std::vector<std::shared_ptr<RegisteredMemory>> regions;
  for (const v1::VerbsTransfer& transfer : request.transfers()) {
    v1::VerbsTarget& target = *reply.add_targets();
    *target.mutable_outcome() = ToOutcome(ExposeOne(transfer, memory, regions, target));
  }
  for (const auto& region : regions) EncodeRegion(*region, devices_, *reply.add_regions());
  absl::MutexLock lock(&mu_);
  return closed_;
}

absl::Status Session::ExposeOne(const v1::VerbsTransfer& request, const MemoryTable& memory,
                                std::vector<std::shared_ptr<RegisteredMemory>>& regions,
                                v1::VerbsTarget& target) {
  const TransferKey key = KeyOf(request.sync_id(), request.secret(), request.transfer());
  // Whoever does not know the sync's secret gets no key of any region: the table refuses.
  XFER_ASSIGN_OR_RETURN(const ReceiveTable::Target entered, table_->Enter(key.sync, key.transfer));
  const auto admit = [&]() -> absl::Status {
    if (entered.transfer->bytes != request.bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "transfer ", key.transfer, " has ", entered.transfer->bytes, " bytes here and ",
          request.bytes(), " at the sender, which has another plan"));
    }
    XFER_ASSIGN_OR_RETURN(std::shared_ptr<RegisteredMemory> region, memory.Find(entered.memory));
    auto it = std::find(regions.begin(), regions.end(), region);
    if (it == regions.end()) it = regions.insert(regions.end(), region);
    target.set_region(static_cast<uint32_t>(it - regions.begin()));
    target.set_base(reinterpret_cast<uint64_t>(entered.memory.base));
    EncodeCopies(*entered.transfer, target);
    absl::MutexLock lock(&mu_);
    XFER_RETURN_IF_ERROR(closed_);
    if (exposed_.size() >= kMaxExposed) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kMaxExposed, " transfers are exposed; finish some"));
    }
    if (!exposed_.try_emplace(key, Exposed{entered, std::move(region), false}).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("transfer ", key.transfer, " is exposed already"));
    }
    return absl::OkStatus();
  };
  absl::Status status = admit();
  if (!status.ok()) table_->Leave(key.sync, key.transfer);
  return status;
}

absl::Status Session::Finish(const v1::VerbsFinish& request, absl::Time deadline,
                             v1::VerbsFinishReply& reply) {
  for (const uint32_t number : request.dead_queue_pairs()) {
    XFER_RETURN_IF_ERROR(Retire(number, deadline));
  }
  for (const v1::VerbsFinished& transfer : request.transfers()) {
    *reply.add_outcomes() = ToOutcome(FinishOne(transfer, deadline));
  }
  absl::MutexLock lock(&mu_);
  return closed_;
}

absl::Status Session::FinishOne(const v1::VerbsFinished& request, absl::Time deadline) {
  const TransferKey key = KeyOf(request.sync_id(), request.secret(), request.transfer());
  Exposed exposed;
  {
    absl::MutexLock lock(&mu_);
    XFER_RETURN_IF_ERROR(closed_);
    const auto it = exposed_.find(key);
    if (it == exposed_.end() || it->second.finishing) {
      return absl::NotFoundError(absl::StrCat("transfer ", key.transfer, " is not exposed"));
    }
    it->second.finishing = true;  // from here on, leaving is for this function
    exposed = it->second;
  }
  absl::Status status = CheckRanges(request, exposed.target.transfer->bytes);
  if (status.ok()) status = AwaitNotices(request, deadline);
  if (status.ok()) {
    for (const v1::VerbsRange& range : request.ranges()) {
      table_->Arrived(key.sync, key.transfer, range.begin(), range.end());
    }
    status = table_->Finished(key.sync, key.transfer, request.digest());
  }
  {
    absl::MutexLock lock(&mu_);
    exposed_.erase(key);
  }
  table_->Leave(key.sync, key.transfer);
  return status;
}

absl::Status Session::CheckRanges(const v1::VerbsFinished& request, uint64_t bytes) const {
  uint64_t reached = 0;
  for (const v1::VerbsRange& range : request.ranges()) {
    if (range.begin() < reached || range.begin() >= range.end() || range.end() > bytes ||
        range.begin() % kDigestLeafBytes != 0 ||
        (range.end() % kDigestLeafBytes != 0 && range.end() != bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("range [", range.begin(), ", ", range.end(),
                                                     ") of transfer ", request.transfer(), " of ",
                                                     bytes, " bytes"));
    }
    reached = range.end();
  }
  return absl::OkStatus();
}

absl::Status Session::AwaitNotices(const v1::VerbsFinished& request, absl::Time deadline) {
  for (const v1::VerbsNotice& notice : request.notices()) {
    absl::MutexLock lock(&mu_);
    while (true) {
      XFER_RETURN_IF_ERROR(closed_);
      Pair* const pair = FindPair(notice.queue_pair());
      if (pair == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("no queue pair ", notice.queue_pair()));
      }
      // Numbers wrap around; they are never 2^31 apart.
      if (static_cast<int32_t>(pair->notices - notice.number()) >= 0) break;
      if (pair->failed) {
        return absl::UnavailableError(absl::StrCat("queue pair ", notice.queue_pair(),
                                                   " failed with ", pair->notices, " of ",
                                                   notice.number(), " notices"));
      }
      if (changed_.WaitWithDeadline(&mu_, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("queue pair ", notice.queue_pair(),
                                                        " gave ", pair->notices, " of ",
                                                        notice.number(), " notices in time"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Session::Retire(uint32_t number, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  Pair* const pair = FindPair(number);
  if (pair == nullptr) return absl::InvalidArgumentError(absl::StrCat("no queue pair ", number));
  if (!pair->qp.valid()) return absl::OkStatus();
  // In the error state nothing more is taken from the wire, and the receive requests that are left
  // come back as flushed, after the notices that had come before: once all are back, `notices` is
  // final.
  XFER_RETURN_IF_ERROR(pair->qp.ToError());
  pair->failed = true;
  deadline = std::min(deadline, absl::Now() + absl::Seconds(2));
  while (closed_.ok() && pair->requests > 0) {
    for (const auto& rail : rails_) DrainLocked(*rail);
    if (pair->requests == 0) break;
    if (changed_.WaitWithDeadline(&mu_, deadline)) {
      spdlog::warn("verbs: queue pair {} of {}: {} receive requests were not flushed in time",
                   number, peer_, pair->requests);
      break;
    }
  }
  pair->qp.Reset();
  changed_.SignalAll();
  return absl::OkStatus();
}

void Session::Close(const absl::Status& reason) {
  std::vector<TransferKey> left;
  {
    absl::MutexLock lock(&mu_);
    if (!closed_.ok()) return;
    closed_ = reason;
    // First the queue pairs: what has been left must not be written to any more.
    for (const auto& rail : rails_) {
      for (Pair& pair : rail->pairs) pair.qp.Reset();
    }
    for (auto it = exposed_.begin(); it != exposed_.end();) {
      if (it->second.finishing) {
        ++it;
        continue;
      }
      left.push_back(it->first);
      exposed_.erase(it++);
    }
    changed_.SignalAll();
  }
  for (const TransferKey& key : left) table_->Leave(key.sync, key.transfer);
}

bool Session::Uses(const RegisteredMemory* memory) {
  absl::MutexLock lock(&mu_);
  return std::any_of(exposed_.begin(), exposed_.end(),
                     [&](const auto& entry) { return entry.second.memory.get() == memory; });
}

std::vector<int> Session::channels() const {
  std::vector<int> fds;
  for (const auto& rail : rails_) fds.push_back(rail->channel.fd());
  return fds;
}

void Session::Drain(size_t rail) {
  absl::MutexLock lock(&mu_);
  if (!closed_.ok()) return;
  rails_[rail]->cq.TakeEvents();
  DrainLocked(*rails_[rail]);
  // An entry that came between the last poll and this is not told of: hence the second look.
  if (const absl::Status status = rails_[rail]->cq.Arm(); !status.ok()) {
    spdlog::error("verbs: from {}: {}; its notices will be late", peer_,
                  std::string(status.message()));
  }
  DrainLocked(*rails_[rail]);
}

void Session::DrainLocked(Rail& rail) {
  std::array<ibv_wc, 32> buffer;
  while (true) {
    const absl::StatusOr<absl::Span<const ibv_wc>> completions =
        rail.cq.Poll(absl::MakeSpan(buffer));
    if (!completions.ok()) {
      spdlog::error("verbs: from {}: {}", peer_, std::string(completions.status().message()));
      return;
    }
    if (completions->empty()) return;
    for (const ibv_wc& completion : *completions) Take(rail, completion);
    changed_.SignalAll();
  }
}

void Session::Take(Rail& rail, const ibv_wc& completion) {
  if (completion.wr_id >= rail.pairs.size()) return;
  Pair& pair = rail.pairs[completion.wr_id];
  if (pair.requests > 0) --pair.requests;
  const bool is_next = completion.status == IBV_WC_SUCCESS &&
                       completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
                       ntohl(completion.imm_data) == pair.notices + 1;
  if (!is_next) {
    if (completion.status != IBV_WC_WR_FLUSH_ERR) {
      spdlog::warn("verbs: from {} on {}: receive request failed: {}, notice {} after {}", peer_,
                   rail.name, ibv_wc_status_str(completion.status), ntohl(completion.imm_data),
                   pair.notices);
    }
    pair.failed = true;
    return;
  }
  ++pair.notices;
  if (pair.failed || !pair.qp.valid()) return;
  if (const absl::Status status = pair.qp.PostReceive(completion.wr_id); !status.ok()) {
    spdlog::warn("verbs: from {} on {}: {}", peer_, rail.name, std::string(status.message()));
    pair.failed = true;
    return;
  }
  ++pair.requests;
}

Session::Pair* Session::FindPair(uint32_t number) {
  for (const auto& rail : rails_) {
    if (number >= rail->first && number - rail->first < rail->pairs.size()) {
      return &rail->pairs[number - rail->first];
    }
  }
  return nullptr;
}

void Session::Heard() {
  absl::MutexLock lock(&mu_);
  heard_ = absl::Now();
}

absl::Time Session::last_heard() {
  absl::MutexLock lock(&mu_);
  return heard_;
}

}  // namespace xfer::verbs
