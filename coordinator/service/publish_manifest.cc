#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "coordinator/registry/names.h"
#include "coordinator/service/agent_hub.h"

namespace xfer {
namespace {

constexpr uint32_t kMaxPieces = 4'000'000;
constexpr int kMaxRegions = 65'536;

absl::StatusOr<RankEntry> FromHeader(const v1::ManifestHeader& header) {
  XFER_RETURN_IF_ERROR(CheckName("job name", header.job()));
  XFER_RETURN_IF_ERROR(CheckName("node name", header.node()));
  RankEntry rank;
  XFER_ASSIGN_OR_RETURN(rank.id, FromProto(header.id()));
  rank.node = header.node();
  rank.incarnation = header.incarnation();
  rank.registration_id = header.registration_id();
  rank.pid = header.pid();
  rank.nic = header.nic();
  rank.ready_version = header.ready_version();
  const std::string who = absl::StrCat("node ", rank.node, ", ", rank.id.ToString());
  if (rank.ready_version < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": ready version ", rank.ready_version, " is negative"));
  }
  if (header.pieces() > kMaxPieces) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": a manifest of ", header.pieces(),
                                                   " pieces is more than the ", kMaxPieces,
                                                   " that are taken"));
  }
  if (header.region_bytes_size() > kMaxRegions) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": ", header.region_bytes_size(),
                                                   " regions are more than the ", kMaxRegions,
                                                   " that are taken"));
  }
  return rank;
}

absl::StatusOr<Manifest> WithRegions(const v1::ManifestHeader& header) {
  Manifest manifest;
  uint64_t total = 0;
  for (uint64_t bytes : header.region_bytes()) {
    if (bytes > std::numeric_limits<int64_t>::max() - total) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", header.node(), ": the regions together do not fit in 63 bits"));
    }
    total += bytes;
    manifest.region_bytes.push_back(bytes);
  }
  return manifest;
}

absl::Status AddPieces(const v1::ManifestPart& part, uint32_t claimed, const std::string& who,
                       Manifest& manifest) {
  if (manifest.pieces.size() + part.pieces_size() > claimed) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": the header says ", claimed, " pieces, and more were sent"));
  }
  for (const v1::Piece& piece : part.pieces()) {
    absl::StatusOr<Piece> converted = FromProto(piece);
    if (!converted.ok()) {
      return Annotate(converted.status(), absl::StrCat(who, ", piece ", manifest.pieces.size()));
    }
    manifest.pieces.push_back(*std::move(converted));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Publish(CoordinatorState* state,
                                 grpc::ServerReader<v1::ManifestPart>* reader) {
  v1::ManifestPart part;
  if (!reader->Read(&part) || !part.has_header()) {
    return absl::InvalidArgumentError("the first part of a manifest must have the header");
  }
  const std::string job = part.header().job();
  const uint32_t claimed = part.header().pieces();
  XFER_ASSIGN_OR_RETURN(RankEntry rank, FromHeader(part.header()));
  XFER_ASSIGN_OR_RETURN(Manifest manifest, WithRegions(part.header()));
  const std::string who = absl::StrCat("job ", job, ", node ", rank.node, ", ", rank.id.ToString());
  do {
    XFER_RETURN_IF_ERROR(AddPieces(part, claimed, who, manifest));
    part.Clear();
  } while (reader->Read(&part));
  if (manifest.pieces.size() != claimed) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": the header says ", claimed,
                                                   " pieces, and ", manifest.pieces.size(),
                                                   " came: the stream was cut; publish it again"));
  }
  rank.manifest = std::make_shared<const Manifest>(std::move(manifest));
  return state->registry.PublishRank(job, std::move(rank));
}

}  // namespace

grpc::Status AgentHubService::PublishManifest(grpc::ServerContext*,
                                              grpc::ServerReader<v1::ManifestPart>* reader,
                                              v1::PublishManifestReply* reply) {
  const absl::StatusOr<uint64_t> generation = Publish(state_, reader);
  if (!generation.ok()) return ToGrpc(generation.status());
  reply->set_generation(*generation);
  return grpc::Status::OK;
}

}  // namespace xfer
