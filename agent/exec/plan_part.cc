#include "agent/exec/plan_part.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"

namespace xfer {
namespace {

// Stands for the size of a region on another node, which that node checks itself.
constexpr uint64_t kElsewhere = std::numeric_limits<uint64_t>::max();

absl::StatusOr<uint64_t> RegionBytes(const RankPin& pin, int32_t region) {
  if (pin == nullptr) return kElsewhere;
  if (static_cast<size_t>(region) >= pin->regions()) {
    return absl::InvalidArgumentError(absl::StrCat("region ", region, " of ",
                                                   pin->info().id.ToString(), ", which has ",
                                                   pin->regions(), " regions"));
  }
  return pin->region(region).bytes;
}

}  // namespace

std::optional<uint32_t> PlanPart::Find(TransferId id) const {
  auto found = std::lower_bound(
      transfers.begin(), transfers.end(), id,
      [](const PartTransfer& t, TransferId wanted) { return t.planned.id < wanted; });
  if (found == transfers.end() || found->planned.id != id) return std::nullopt;
  return static_cast<uint32_t>(found - transfers.begin());
}

std::string PlanPart::TensorName(const Transfer& transfer) const {
  if (transfer.tensor >= 0 && static_cast<size_t>(transfer.tensor) < tensor_names.size()) {
    return tensor_names[transfer.tensor];
  }
  return absl::StrCat("tensor ", transfer.tensor);
}

std::string PlanPart::Describe(const Transfer& transfer) const {
  const PartRank& source = ranks[transfer.source];
  const PartRank& destination = ranks[transfer.destination];
  return absl::StrCat(TensorName(transfer), " from ", source.id.ToString(), " (node ", source.node,
                      ") to ", destination.id.ToString(), " (node ", destination.node, ")");
}

bool IsVerified(v1::Verify verify, uint64_t sync_id, const PartTransfer& transfer) {
  if (verify == v1::VERIFY_NONE) return false;
  if (verify != v1::VERIFY_SAMPLE || transfer.edge) return true;
  // Another choice each sync, so that every transfer has its turn. The multipliers are odd, so the
  // map from ids is one to one before its top bits are taken.
  const uint64_t mixed =
      (sync_id * 0x9e3779b97f4a7c15u + transfer.planned.id) * 0xbf58476d1ce4e5b9u;
  return (mixed >> 60) == 0;
}

PlanPartBuilder::PlanPartBuilder(uint64_t plan_id, std::string node)
    : node_(std::move(node)), part_(std::make_shared<PlanPart>()) {
  part_->plan_id = plan_id;
}

absl::Status PlanPartBuilder::AddHeader(const v1::PlanHeader& header) {
  if (header.plan_id() != part_->plan_id) {
    return absl::InvalidArgumentError(
        absl::StrCat("asked for plan ", part_->plan_id, " and got plan ", header.plan_id()));
  }
  part_->job = header.job();
  part_->tensor_names.assign(header.tensor_names().begin(), header.tensor_names().end());
  for (const v1::PlanRank& message : header.ranks()) {
    PartRank& rank = part_->ranks.emplace_back();
    XFER_ASSIGN_OR_RETURN(rank.id, FromProto(message.id()));
    rank.node = message.node();
    rank.registration_id = message.registration_id();
    rank.local = rank.node == node_;
  }
  expected_ = header.transfers();
  has_header_ = true;
  return absl::OkStatus();
}

absl::Status PlanPartBuilder::AddTransfer(const v1::Transfer& message) {
  PartTransfer transfer;
  XFER_ASSIGN_OR_RETURN(transfer.planned, FromProto(message));
  const Transfer& planned = transfer.planned;
  const auto ranks = static_cast<int32_t>(part_->ranks.size());
  if (planned.source >= ranks || planned.destination >= ranks) {
    return absl::InvalidArgumentError(absl::StrCat("transfer ", planned.id, " is between ranks ",
                                                   planned.source, " and ", planned.destination,
                                                   " of a plan with ", ranks));
  }
  transfer.sends = part_->ranks[planned.source].local;
  transfer.receives = part_->ranks[planned.destination].local;
  if (!transfer.sends && !transfer.receives) {
    return absl::InvalidArgumentError(
        absl::StrCat("transfer ", planned.id, " has nothing to do with node ", node_));
  }
  part_->transfers.push_back(std::move(transfer));
  return absl::OkStatus();
}

absl::Status PlanPartBuilder::Add(const v1::PlanPart& message) {
  if (message.has_header()) {
    if (has_header_) return absl::InvalidArgumentError("a plan part with two headers");
    XFER_RETURN_IF_ERROR(AddHeader(message.header()));
  }
  if (!has_header_) return absl::InvalidArgumentError("a plan part without a header");
  for (const v1::Transfer& transfer : message.transfers()) {
    XFER_RETURN_IF_ERROR(AddTransfer(transfer));
  }
  return absl::OkStatus();
}

void PlanPartBuilder::MarkEdges() {
  absl::flat_hash_map<std::pair<int32_t, int32_t>, PartTransfer*> last;
  for (PartTransfer& transfer : part_->transfers) {
    PartTransfer*& previous = last[{transfer.planned.source, transfer.planned.destination}];
    if (previous == nullptr) transfer.edge = true;
    previous = &transfer;
  }
  for (auto& [ranks, transfer] : last) transfer->edge = true;
}

absl::Status PlanPartBuilder::CheckWaits() const {
  for (const PartTransfer& transfer : part_->transfers) {
    if (!transfer.sends) continue;
    for (TransferId id : transfer.planned.waits_for) {
      const std::optional<uint32_t> index = part_->Find(id);
      if (!index.has_value() || !part_->transfers[*index].receives) {
        return absl::InvalidArgumentError(absl::StrCat("transfer ", transfer.planned.id,
                                                       " waits for transfer ", id,
                                                       ", which does not arrive on node ", node_));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const PlanPart>> PlanPartBuilder::Finish() {
  if (!has_header_ || part_->transfers.size() != expected_) {
    return absl::InvalidArgumentError(absl::StrCat("plan ", part_->plan_id,
                                                   " was cut: ", part_->transfers.size(), " of ",
                                                   expected_, " transfers came"));
  }
  std::vector<PartTransfer>& transfers = part_->transfers;
  std::sort(transfers.begin(), transfers.end(), [](const PartTransfer& a, const PartTransfer& b) {
    return a.planned.id < b.planned.id;
  });
  auto doubled = std::adjacent_find(
      transfers.begin(), transfers.end(),
      [](const PartTransfer& a, const PartTransfer& b) { return a.planned.id == b.planned.id; });
  if (doubled != transfers.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan ", part_->plan_id, " has transfer ", doubled->planned.id, " twice"));
  }
  MarkEdges();
  XFER_RETURN_IF_ERROR(CheckWaits());
  for (uint32_t i = 0; i < transfers.size(); ++i) {
    PartTransfer& transfer = transfers[i];
    if (transfer.sends) {
      part_->sends[part_->ranks[transfer.planned.destination].node].push_back(i);
      part_->relays = part_->relays || !transfer.planned.waits_for.empty();
    }
    // CheckTransfer also proves what SplitConversion relies on; regions are checked with the pins.
    XFER_RETURN_IF_ERROR(CheckTransfer(transfer.planned, kElsewhere, kElsewhere));
    if (transfer.planned.conversion.none()) continue;
    XFER_ASSIGN_OR_RETURN(transfer.converted, SplitConversion(transfer.planned));
  }
  return std::move(part_);
}

absl::StatusOr<std::vector<RankPin>> PinRanks(const PlanPart& part, const RankTable& ranks) {
  std::vector<RankPin> pins(part.ranks.size());
  for (size_t i = 0; i < part.ranks.size(); ++i) {
    const PartRank& rank = part.ranks[i];
    if (!rank.local) continue;
    RankPin pin = ranks.Find(part.job, rank.id);
    if (pin == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "stale plan: ", rank.id.ToString(), " of job ", part.job, " is not registered on node ",
          rank.node, " any more; trigger the sync again"));
    }
    if (pin->registration_id() != rank.registration_id) {
      return absl::FailedPreconditionError(
          absl::StrCat("stale plan: ", rank.id.ToString(), " of job ", part.job, " on node ",
                       rank.node, " is registered as ", pin->registration_id(),
                       ", and the plan is for ", rank.registration_id, "; trigger the sync again"));
    }
    pins[i] = std::move(pin);
  }
  return pins;
}

absl::Status CheckPart(const PlanPart& part, const std::vector<RankPin>& pins) {
  for (const PartTransfer& transfer : part.transfers) {
    const Transfer& t = transfer.planned;
    XFER_ASSIGN_OR_RETURN(const uint64_t source, RegionBytes(pins[t.source], t.source_region));
    XFER_ASSIGN_OR_RETURN(const uint64_t destination,
                          RegionBytes(pins[t.destination], t.destination_region));
    XFER_RETURN_IF_ERROR(Annotate(CheckTransfer(t, source, destination), part.Describe(t)));
  }
  return absl::OkStatus();
}

std::shared_ptr<const PlanPart> PlanPartCache::Find(uint64_t plan_id) {
  absl::MutexLock lock(&mu_);
  for (auto part = parts_.begin(); part != parts_.end(); ++part) {
    if ((*part)->plan_id != plan_id) continue;
    std::rotate(part, part + 1, parts_.end());
    return parts_.back();
  }
  return nullptr;
}

void PlanPartCache::Put(std::shared_ptr<const PlanPart> part) {
  Forget(part->plan_id);
  absl::MutexLock lock(&mu_);
  if (parts_.size() >= capacity_) parts_.erase(parts_.begin());
  parts_.push_back(std::move(part));
}

void PlanPartCache::Forget(uint64_t plan_id) {
  absl::MutexLock lock(&mu_);
  parts_.erase(std::remove_if(parts_.begin(), parts_.end(),
                              [&](const auto& part) { return part->plan_id == plan_id; }),
               parts_.end());
}

}  // namespace xfer
