#include "agent/transport/verbs/exposure.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer::verbs {

void EncodeCopies(const Transfer& transfer, v1::VerbsTarget& target) {
  for (const Copy& copy : transfer.copies) {
    v1::VerbsCopy& out = *target.add_copies();
    out.set_offset(copy.destination_offset);
    out.set_run(copy.run);
    for (const CopyLevel& level : copy.levels) {
      out.add_counts(level.count);
      out.add_strides(level.destination_stride);
    }
  }
}

void EncodeRegion(const RegisteredMemory& memory, absl::Span<const size_t> devices,
                  v1::VerbsRegion& region) {
  region.set_base(reinterpret_cast<uint64_t>(memory.memory().base));
  region.set_bytes(memory.memory().bytes);
  region.set_piece_bytes(memory.piece_bytes());
  for (const size_t device : devices) {
    v1::VerbsKeys& keys = *region.add_rails();
    for (const RegisteredMemory::Keys& piece : memory.keys(device)) keys.add_keys(piece.remote);
  }
}

absl::StatusOr<std::vector<std::shared_ptr<const RemoteRegion>>> DecodeRegions(
    const v1::VerbsExposeReply& reply, size_t rails) {
  std::vector<std::shared_ptr<const RemoteRegion>> regions;
  for (const v1::VerbsRegion& region : reply.regions()) {
    auto remote = std::make_shared<RemoteRegion>();
    remote->base = region.base();
    remote->bytes = region.bytes();
    remote->piece_bytes = region.piece_bytes();
    const bool sane = remote->bytes > 0 && remote->piece_bytes > 0 &&
                      remote->base <= std::numeric_limits<uint64_t>::max() - remote->bytes &&
                      static_cast<size_t>(region.rails_size()) == rails;
    if (!sane)
      return absl::InternalError(
          "the receiver described a region that cannot be; do versions differ?");
    const uint64_t pieces = (remote->bytes - 1) / remote->piece_bytes + 1;
    for (const v1::VerbsKeys& keys : region.rails()) {
      if (static_cast<uint64_t>(keys.keys_size()) != pieces) {
        return absl::InternalError(absl::StrCat("the receiver gave ", keys.keys_size(),
                                                " keys for ", pieces, " pieces of a region"));
      }
      remote->keys.emplace_back(keys.keys().begin(), keys.keys().end());
    }
    regions.push_back(std::move(remote));
  }
  return regions;
}

absl::StatusOr<Destination> DecodeTarget(
    const v1::VerbsTarget& target, absl::Span<const std::shared_ptr<const RemoteRegion>> regions,
    uint64_t transfer_bytes) {
  Destination destination;
  if (target.region() >= regions.size()) {
    return absl::InternalError(
        absl::StrCat("the receiver named region ", target.region(), " of ", regions.size()));
  }
  destination.region = regions[target.region()];
  destination.base = target.base();
  const RemoteRegion& region = *destination.region;
  if (destination.base < region.base || destination.base - region.base > region.bytes) {
    return absl::InternalError("the receiver placed a transfer outside its region");
  }
  Transfer check;
  check.bytes = transfer_bytes;
  for (const v1::VerbsCopy& in : target.copies()) {
    Copy copy;
    copy.source_offset = copy.destination_offset = in.offset();
    copy.run = in.run();
    if (in.counts_size() != in.strides_size()) {
      return absl::InternalError(
          "the receiver described a copy that cannot be; do versions differ?");
    }
    for (int i = 0; i < in.counts_size(); ++i) {
      copy.levels.push_back({in.counts(i), in.strides(i), in.strides(i)});
    }
    check.copies.push_back(std::move(copy));
  }
  const uint64_t room = region.bytes - (destination.base - region.base);
  XFER_RETURN_IF_ERROR(
      Annotate(CheckTransfer(check, room, room), "the receiver's layout of the transfer"));
  destination.copies = std::move(check.copies);
  return destination;
}

}  // namespace xfer::verbs
