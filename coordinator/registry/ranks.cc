// Registry: ranks come, speak and go.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "coordinator/registry/names.h"
#include "coordinator/registry/registry.h"

namespace xfer {
namespace {

constexpr size_t kMaxOutcomeMessage = 1024;

// Offset of the last element of a piece plus its size, or nullopt where that wraps or a step goes
// back.
bool EndOf(const Piece& piece, uint64_t& end) {
  __int128 last = piece.offset;
  for (size_t d = 0; d < piece.box.extent.size(); ++d) {
    if (piece.strides[d] < 0) return false;
    last += static_cast<__int128>(piece.box.extent[d] - 1) * piece.strides[d];
    if (last > std::numeric_limits<int64_t>::max()) return false;
  }
  end = static_cast<uint64_t>(last) + static_cast<uint64_t>(SizeOf(piece.dtype));
  return true;
}

absl::Status CheckPiece(const Piece& piece, size_t index, const Manifest& manifest,
                        const TensorTable& tensors) {
  const auto bad = [&](const auto&... what) {
    const std::string tensor = piece.tensor >= 0 && piece.tensor < tensors.size()
                                   ? tensors[piece.tensor].name
                                   : absl::StrCat("number ", piece.tensor);
    return absl::InvalidArgumentError(
        absl::StrCat("piece ", index, " (tensor ", tensor, "): ", what...));
  };
  if (piece.tensor < 0 || piece.tensor >= tensors.size()) {
    return bad("the model has ", tensors.size(), " tensors");
  }
  const TensorInfo& tensor = tensors[piece.tensor];
  const size_t dims = tensor.shape.size();
  if (piece.box.start.size() != dims || piece.box.extent.size() != dims ||
      piece.strides.size() != dims) {
    return bad("box ", piece.box.ToString(), " with ", piece.strides.size(),
               " strides does not have the tensor's ", dims, " dimensions");
  }
  for (size_t d = 0; d < dims; ++d) {
    if (piece.box.start[d] < 0 || piece.box.extent[d] < 1 ||
        piece.box.extent[d] > tensor.shape[d] ||
        piece.box.start[d] > tensor.shape[d] - piece.box.extent[d]) {
      return bad("box ", piece.box.ToString(), " is not inside ",
                 Box::Whole(tensor.shape).ToString());
    }
  }
  if (piece.region < 0 || static_cast<size_t>(piece.region) >= manifest.region_bytes.size()) {
    return bad("region ", piece.region, " is not one of the ", manifest.region_bytes.size(),
               " registered");
  }
  uint64_t end = 0;
  if (!EndOf(piece, end) || end > manifest.region_bytes[piece.region]) {
    return bad("its bytes from offset ", piece.offset, " do not lie inside region ", piece.region,
               " of ", manifest.region_bytes[piece.region], " bytes");
  }
  return absl::OkStatus();
}

std::string WorldOf(const ModelSpec& spec) {
  return absl::StrCat(spec.train.world, " trainers and ", spec.rollout.engines(), " engines of ",
                      spec.rollout.gpus_per_engine, " ranks");
}

bool InWorld(const ModelSpec& spec, const RankId& id) {
  if (id.rank < 0) return false;
  if (id.role == Role::kTrainer) return id.engine == 0 && id.rank < spec.train.world;
  return id.engine >= 0 && id.engine < spec.rollout.engines() &&
         id.rank < spec.rollout.gpus_per_engine;
}

}  // namespace

absl::Status CheckPieces(const Manifest& manifest, const TensorTable& tensors) {
  for (size_t i = 0; i < manifest.pieces.size(); ++i) {
    XFER_RETURN_IF_ERROR(CheckPiece(manifest.pieces[i], i, manifest, tensors));
  }
  return absl::OkStatus();
}

absl::Status Registry::CheckPublish(const JobData& job, const RankEntry& rank) const {
  const std::string& name = job.info.name();
  if (job.info.finished()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", name, " has finished; ", rank.id.ToString(), " cannot join it any more"));
  }
  auto node = nodes_.find(rank.node);
  if (node == nodes_.end()) {
    return absl::UnavailableError(
        absl::StrCat("node ", rank.node, " has no living session; ", rank.id.ToString(),
                     " can be registered once its agent is connected again"));
  }
  if (node->second.incarnation != rank.incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", rank.node, "'s living session is of another incarnation, so ",
                     rank.id.ToString(), " is refused; its agent was started again"));
  }
  if (rank.nic < 0 || rank.nic >= node->second.nics) {
    return absl::InvalidArgumentError(absl::StrCat("job ", name, ", ", rank.id.ToString(), ": NIC ",
                                                   rank.nic, " is not one of the ",
                                                   node->second.nics, " of node ", rank.node));
  }
  if (!InWorld(job.spec, rank.id)) {
    return absl::InvalidArgumentError(absl::StrCat("job ", name, " has ", WorldOf(job.spec), "; ",
                                                   rank.id.ToString(), " is not among them"));
  }
  if (auto held = job.ranks.find(rank.id); held != job.ranks.end()) {
    if (held->second.node != rank.node) {
      return absl::AlreadyExistsError(absl::StrCat(
          "job ", name, ": ", rank.id.ToString(), " is registered on node ", held->second.node,
          " (pid ", held->second.pid, ") and cannot be on node ", rank.node, " (pid ", rank.pid,
          ") too; end one of the two processes or give it another rank"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Registry::PublishRank(const std::string& job_name, RankEntry rank) {
  std::vector<Gone> gone;
  uint64_t generation = 0;
  {
    std::shared_ptr<const TensorTable> tensors;
    {
      absl::MutexLock lock(&mu_);
      XFER_ASSIGN_OR_RETURN(const JobData* job, Find(job_name));
      XFER_RETURN_IF_ERROR(CheckPublish(*job, rank));
      tensors = job->tensors;
    }
    // Many pieces: checked without the lock. The table belongs to this very job, see below.
    XFER_RETURN_IF_ERROR(
        Annotate(CheckPieces(*rank.manifest, *tensors),
                 absl::StrCat("job ", job_name, ", ", rank.id.ToString(), ", node ", rank.node)));
    absl::MutexLock lock(&mu_);
    XFER_ASSIGN_OR_RETURN(JobData * job, Find(job_name));
    if (job->tensors != tensors) {
      return absl::AbortedError(
          absl::StrCat("job ", job_name, " was made anew meanwhile; register again"));
    }
    XFER_RETURN_IF_ERROR(CheckPublish(*job, rank));
    auto held = job->ranks.find(rank.id);
    if (held != job->ranks.end()) {
      if (held->second.SameRegistration(rank)) {
        // A report may have been lost with the session before, or have come since the manifest was
        // made.
        held->second.ready_version = std::max(held->second.ready_version, rank.ready_version);
        Changed(*job);
        return job->info.generation();
      }
      gone.push_back({job_name, held->second, "it was registered anew"});
    }
    if (rank.id.role == Role::kRollout) {
      Engine& engine = job->engines[rank.id.engine];
      const StoredRank holder{rank.id, rank.node, rank.incarnation, rank.registration_id};
      if (std::find(engine.holders.begin(), engine.holders.end(), holder) == engine.holders.end()) {
        engine.version = 0;  // other memory: nobody knows what is in it
        engine.holders.clear();
      }
    }
    job->info.set_generation(job->info.generation() + 1);
    generation = job->info.generation();
    job->ranks[rank.id] = std::move(rank);
    Changed(*job);
  }
  Tell(gone);
  return generation;
}

void Registry::DropRank(const std::string& job_name, const RankId& id, const std::string& node,
                        uint64_t incarnation, uint64_t registration_id, const std::string& reason) {
  std::vector<Gone> gone;
  {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<JobData*> job = Find(job_name);
    if (!job.ok()) return;
    auto it = (*job)->ranks.find(id);
    if (it == (*job)->ranks.end() || it->second.node != node ||
        it->second.incarnation != incarnation || it->second.registration_id != registration_id) {
      return;
    }
    gone.push_back({job_name, it->second, Shorten(reason, kMaxOutcomeMessage)});
    (*job)->ranks.erase(it);
    (*job)->info.set_generation((*job)->info.generation() + 1);
    Changed(**job);
  }
  Tell(gone);
}

absl::Status Registry::Report(const std::string& node, uint64_t incarnation,
                              const v1::RankReport& report) {
  XFER_ASSIGN_OR_RETURN(const RankId id, FromProto(report.id()));
  absl::MutexLock lock(&mu_);
  XFER_ASSIGN_OR_RETURN(JobData * job, Find(report.job()));
  auto it = job->ranks.find(id);
  if (it == job->ranks.end() || it->second.node != node || it->second.incarnation != incarnation ||
      it->second.registration_id != report.registration_id()) {
    return absl::NotFoundError(absl::StrCat("job ", report.job(), ": registration ",
                                            report.registration_id(), " of ", id.ToString(),
                                            " on node ", node, " is not the current one"));
  }
  if (report.ready_version() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("job ", report.job(), ", ", id.ToString(),
                                                   ": ready version ", report.ready_version(),
                                                   " is negative"));
  }
  if (report.ready_version() > 0 && id.role == Role::kTrainer) {
    it->second.ready_version = report.ready_version();
  }
  if (report.has_owner_report()) {
    it->second.owner_report = report.owner_report();
    std::string* message = it->second.owner_report.mutable_outcome()->mutable_message();
    *message = Shorten(*message, kMaxOutcomeMessage);
  }
  Changed(*job);
  return absl::OkStatus();
}

}  // namespace xfer
