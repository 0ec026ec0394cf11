#include "agent/service/registrar.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"

namespace xfer {
namespace {

constexpr size_t kPiecesPerPart = 2000;
constexpr int kMaxRegions = 4096;
constexpr absl::Duration kDefaultTime = absl::Seconds(30);
constexpr absl::Duration kPublishAgain = absl::Milliseconds(100);

std::vector<std::string> Serialise(const Manifest& manifest) {
  std::vector<std::string> parts;
  v1::ManifestPart part;
  for (const Piece& piece : manifest.pieces) {
    *part.add_pieces() = ToProto(piece);
    if (static_cast<size_t>(part.pieces_size()) < kPiecesPerPart) continue;
    parts.push_back(part.SerializeAsString());
    part.Clear();
  }
  if (part.pieces_size() > 0) parts.push_back(part.SerializeAsString());
  return parts;
}

}  // namespace

Registrar::Registrar(RegistrarOptions options, RankTable* ranks, FdReceiver* fds,
                     CoordinatorSession* coordinator, std::function<void(const LocalRank&)> on_gone)
    : options_(std::move(options)),
      ranks_(ranks),
      fds_(fds),
      coordinator_(coordinator),
      on_gone_(std::move(on_gone)),
      janitor_(&Registrar::DropUnattached, this) {}

Registrar::~Registrar() { Stop(); }

void Registrar::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (janitor_.joinable()) janitor_.join();
}

absl::StatusOr<std::vector<MappedRegion>> Registrar::MapRegions(const v1::RankHeader& header) {
  if (header.regions_size() > kMaxRegions) {
    return absl::InvalidArgumentError(
        absl::StrCat(header.regions_size(), " regions; at most ", kMaxRegions, " are possible"));
  }
  std::vector<MappedRegion> regions;
  for (int i = 0; i < header.regions_size(); ++i) {
    const v1::Region& region = header.regions(i);
    const std::string what = absl::StrCat("region ", i);
    if (region.kind() != v1::MEMORY_KIND_MEMFD) {
      return absl::UnimplementedError(
          absl::StrCat(what, " is of kind ", static_cast<int>(region.kind()),
                       "; this agent takes host memory (MEMORY_KIND_MEMFD)"));
    }
    absl::StatusOr<UniqueFd> fd = fds_->Take(region.fd_token());
    if (!fd.ok()) return Annotate(fd.status(), what);
    absl::StatusOr<MappedRegion> mapped =
        MappedRegion::Map(fd->get(), region.offset_bytes(), region.bytes());
    if (!mapped.ok()) return Annotate(mapped.status(), what);
    regions.push_back(*std::move(mapped));
  }
  return regions;
}

absl::StatusOr<RankPin> Registrar::Add(const v1::RankHeader& header, LocalRankInfo info,
                                       std::vector<MappedRegion> regions, bool update) {
  if (!update) return ranks_->Add(std::move(info), std::move(regions), header.ready_version());
  const RankPin old = ranks_->Find(header.registration_id());
  XFER_ASSIGN_OR_RETURN(RankPin rank, ranks_->Replace(header.registration_id(), std::move(info),
                                                      std::move(regions), header.ready_version()));
  sessions_->Rebind(header.registration_id(), rank->registration_id());
  // The coordinator learns of it by the manifest that takes the old one's place.
  if (old != nullptr) Gone(old, "it registered anew", /*tell_coordinator=*/false);
  return rank;
}

absl::StatusOr<uint64_t> Registrar::Publish(const LocalRank& rank, absl::Time deadline) {
  while (true) {
    absl::StatusOr<uint64_t> generation = coordinator_->calls().Publish(rank, deadline);
    if (!absl::IsUnavailable(generation.status())) return generation;
    // Its own session may not know yet that the coordinator has lost it.
    const absl::Time again = absl::Now() + kPublishAgain;
    if (again >= deadline) return generation;
    {
      absl::MutexLock lock(&mu_);
      while (!stopping_ && !changed_.WaitWithDeadline(&mu_, again)) {
      }
      if (stopping_) return generation;
    }
    XFER_RETURN_IF_ERROR(coordinator_->WaitConnected(deadline));
  }
}

absl::StatusOr<v1::RegisterRankReply> Registrar::Register(const v1::RankHeader& header,
                                                          std::vector<TensorPlacement> tensors,
                                                          bool update) {
  const absl::Time deadline =
      absl::Now() +
      (header.deadline_ms() > 0 ? absl::Milliseconds(header.deadline_ms()) : kDefaultTime);
  XFER_ASSIGN_OR_RETURN(const RankId id, FromProto(header.id()));
  // First, for descriptors wait only so long.
  XFER_ASSIGN_OR_RETURN(std::vector<MappedRegion> regions, MapRegions(header));
  XFER_RETURN_IF_ERROR(coordinator_->WaitConnected(deadline));
  XFER_ASSIGN_OR_RETURN(const v1::Job job, coordinator_->calls().GetJob(header.job(), deadline));
  XFER_ASSIGN_OR_RETURN(const auto model, models_.Get(job));
  XFER_RETURN_IF_ERROR(CheckRank(*model, id, header.world()));

  std::vector<uint64_t> region_bytes;
  for (const MappedRegion& region : regions) region_bytes.push_back(region.bytes().size());
  XFER_ASSIGN_OR_RETURN(const Manifest manifest, ManifestOf(*model, id, tensors, region_bytes));
  LocalRankInfo info;
  info.job = header.job();
  info.id = id;
  info.pid = header.pid();
  info.nic = options_.nics <= 1 ? 0 : std::max(header.device(), 0) % options_.nics;
  info.model_bytes = manifest.bytes();
  info.pieces = static_cast<uint32_t>(manifest.pieces.size());
  info.manifest = Serialise(manifest);

  XFER_ASSIGN_OR_RETURN(const RankPin rank,
                        Add(header, std::move(info), std::move(regions), update));
  absl::StatusOr<uint64_t> generation = Publish(*rank, deadline);
  if (!generation.ok()) {
    Remove(rank->registration_id(), "the coordinator refused it");
    return generation.status();
  }
  if (rank->gone()) {
    return absl::AbortedError(absl::StrCat(id.ToString(), " of job ", header.job(),
                                           " was unregistered while it registered"));
  }
  WatchAttach(rank->registration_id());
  spdlog::info(
      "registered {} of job {}: process {}, {} bytes in {} regions ({} for the transports), {} "
      "pieces",
      id.ToString(), header.job(), header.pid(), rank->region_bytes(), rank->regions(),
      absl::FormatDuration(rank->memory_time()), rank->info().pieces);
  v1::RegisterRankReply reply;
  reply.set_registration_id(rank->registration_id());
  reply.set_generation(*generation);
  reply.set_model_bytes(rank->info().model_bytes);
  reply.set_pieces(rank->info().pieces);
  reply.set_memory_ns(absl::ToInt64Nanoseconds(rank->memory_time()));
  return reply;
}

void Registrar::Gone(RankPin rank, const std::string& reason, bool tell_coordinator) {
  on_gone_(*rank);
  if (tell_coordinator) {
    v1::AgentEvent event;
    v1::RankGone* gone = event.mutable_rank_gone();
    gone->set_job(rank->info().job);
    *gone->mutable_id() = ToProto(rank->info().id);
    gone->set_registration_id(rank->registration_id());
    gone->set_reason(reason);
    coordinator_->Send(std::move(event));
    spdlog::info("unregistered {} of job {} (process {}): {}", rank->info().id.ToString(),
                 rank->info().job, rank->info().pid, reason);
  }
  unmapper_.Submit([rank = std::move(rank)]() mutable { rank.reset(); });
}

void Registrar::Remove(uint64_t registration_id, const std::string& reason) {
  RankPin rank = ranks_->Remove(registration_id);
  if (rank == nullptr) return;
  sessions_->Close(registration_id, absl::OkStatus());
  Gone(std::move(rank), reason, /*tell_coordinator=*/true);
}

void Registrar::WatchAttach(uint64_t registration_id) {
  if (sessions_->Attached(registration_id)) return;
  absl::MutexLock lock(&mu_);
  unattached_.push_back({registration_id, absl::Now() + options_.attach_time});
  changed_.SignalAll();
}

void Registrar::DropUnattached() {
  mu_.Lock();
  while (!stopping_) {
    if (unattached_.empty()) {
      changed_.Wait(&mu_);
      continue;
    }
    const Unattached next = unattached_.front();
    if (absl::Now() < next.limit) {
      changed_.WaitWithDeadline(&mu_, next.limit);
      continue;
    }
    unattached_.pop_front();
    mu_.Unlock();
    if (!sessions_->Attached(next.registration_id)) {
      Remove(next.registration_id, absl::StrCat("it opened no session within ",
                                                absl::FormatDuration(options_.attach_time)));
    }
    mu_.Lock();
  }
  mu_.Unlock();
}

absl::Status Registrar::OnAttach(uint64_t registration_id) {
  if (ranks_->Find(registration_id) != nullptr) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("registration ", registration_id, " does not exist (any more); register again"));
}

void Registrar::OnReady(uint64_t registration_id, int64_t version) {
  const RankPin rank = ranks_->Find(registration_id);
  if (rank == nullptr) return;
  rank->set_ready_version(version);
  v1::AgentEvent event;
  v1::RankReport* report = event.mutable_rank_report();
  report->set_job(rank->info().job);
  *report->mutable_id() = ToProto(rank->info().id);
  report->set_registration_id(registration_id);
  report->set_ready_version(version);
  coordinator_->Send(std::move(event));
}

void Registrar::OnVerdict(uint64_t registration_id, const v1::OwnerVerdict& verdict) {
  const RankPin rank = ranks_->Find(registration_id);
  if (rank == nullptr) return;
  v1::AgentEvent event;
  v1::RankReport* report = event.mutable_rank_report();
  report->set_job(rank->info().job);
  *report->mutable_id() = ToProto(rank->info().id);
  report->set_registration_id(registration_id);
  report->mutable_owner_report()->set_version(verdict.version());
  *report->mutable_owner_report()->mutable_outcome() = verdict.outcome();
  coordinator_->Send(std::move(event));
}

void Registrar::OnSessionEnd(uint64_t registration_id, const std::string& reason) {
  Remove(registration_id, reason);
}

}  // namespace xfer
