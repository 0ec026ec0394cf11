#include "agent/transport/verbs/write_list.h"

#include <arpa/inet.h>

#include <algorithm>

namespace xfer::verbs {

WriteList::WriteList(const Limits& limits)
    : limits_(limits), requests_(limits.requests), pieces_(limits.requests * limits.pieces) {}

void WriteList::Start(size_t requests) {
  most_ = std::min(requests, limits_.requests);
  size_ = 0;
}

uint64_t WriteList::LeftOfPiece(uint64_t offset, uint64_t piece_bytes, uint64_t region_bytes) {
  return std::min(piece_bytes - offset % piece_bytes, region_bytes - offset);
}

bool WriteList::Put(uint64_t source, uint32_t local_key, uint64_t destination, uint32_t remote_key,
                    uint64_t bytes) {
  if (size_ > 0) {
    ibv_send_wr& last = requests_[size_ - 1];
    if (last.wr.rdma.remote_addr + last_bytes_ == destination && last.wr.rdma.rkey == remote_key &&
        last_bytes_ + bytes <= limits_.request_bytes) {
      ibv_sge& piece = last.sg_list[last.num_sge - 1];
      if (piece.addr + piece.length == source && piece.lkey == local_key) {
        piece.length += static_cast<uint32_t>(bytes);
        last_bytes_ += bytes;
        return true;
      }
      if (static_cast<size_t>(last.num_sge) < limits_.pieces) {
        last.sg_list[last.num_sge++] = {source, static_cast<uint32_t>(bytes), local_key};
        last_bytes_ += bytes;
        return true;
      }
    }
  }
  if (size_ == most_) return false;
  ibv_send_wr& next = requests_[size_];
  next.sg_list = &pieces_[size_ * limits_.pieces];
  next.sg_list[0] = {source, static_cast<uint32_t>(bytes), local_key};
  next.num_sge = 1;
  next.wr.rdma.remote_addr = destination;
  next.wr.rdma.rkey = remote_key;
  last_bytes_ = bytes;
  ++size_;
  return true;
}

uint64_t WriteList::Add(const Way& way, RunCursor& source, RunCursor& destination, uint64_t bytes) {
  const Memory& memory = way.memory;
  const RemoteRegion& region = *way.destination->region;
  const uint64_t source_base = static_cast<uint64_t>(way.source - memory.base);
  const uint64_t destination_base = way.destination->base - region.base;
  const std::vector<uint32_t>& remote_keys = region.keys[way.rail];
  uint64_t added = 0;
  while (added < bytes) {
    const uint64_t from = source_base + source.offset();
    const uint64_t to = destination_base + destination.offset();
    const uint64_t take =
        std::min({source.left(), destination.left(), bytes - added, limits_.request_bytes,
                  LeftOfPiece(from, way.piece_bytes, memory.bytes),
                  LeftOfPiece(to, region.piece_bytes, region.bytes)});
    const uint32_t local_key = way.keys[from / way.piece_bytes].local;
    if (!Put(reinterpret_cast<uint64_t>(memory.base) + from, local_key, region.base + to,
             remote_keys[to / region.piece_bytes], take)) {
      break;
    }
    source.Advance(take);
    destination.Advance(take);
    added += take;
  }
  return added;
}

ibv_send_wr* WriteList::Finish(uint64_t id, uint32_t notice) {
  for (size_t i = 0; i < size_; ++i) {
    ibv_send_wr& request = requests_[i];
    request.wr_id = id;
    request.next = i + 1 < size_ ? &requests_[i + 1] : nullptr;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = 0;
  }
  ibv_send_wr& last = requests_[size_ - 1];
  last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last.send_flags = IBV_SEND_SIGNALED;
  last.imm_data = htonl(notice);
  return requests_.data();
}

}  // namespace xfer::verbs
