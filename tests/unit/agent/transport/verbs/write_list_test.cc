// What RDMA writes are made of a transfer: they are carried out here on memory, and their form is
// looked at.
#include "agent/transport/verbs/write_list.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/unit/agent/transport/test_transfers.h"

namespace xfer::verbs {
namespace {

constexpr uint32_t kLocalKey = 100, kRemoteKey = 200;  // of piece 0

// A source and a destination in this process, each registered in pieces.
class WriteListTest : public ::testing::Test {
 protected:
  void SetUp() override { Register(1 << 20, 1 << 20); }

  void Register(uint64_t source_piece, uint64_t destination_piece) {
    source_piece_ = source_piece;
    local_keys_.clear();
    for (uint32_t i = 0; i * source_piece < source_.size(); ++i)
      local_keys_.push_back({kLocalKey + i, 0});
    auto region = std::make_shared<RemoteRegion>();
    region->base = reinterpret_cast<uint64_t>(destination_.data());
    region->bytes = destination_.size();
    region->piece_bytes = destination_piece;
    region->keys.resize(2);
    for (uint32_t i = 0; i * destination_piece < destination_.size(); ++i) {
      region->keys[0].push_back(0);  // another rail's
      region->keys[1].push_back(kRemoteKey + i);
    }
    region_ = std::move(region);
  }

  // Makes lists of [begin, end) and carries them out. Returns the number of requests.
  size_t Write(const Transfer& transfer, const WriteList::Limits& limits, uint64_t begin,
               uint64_t end) {
    Destination destination{region_, region_->base, transfer.copies};
    WriteList list(limits);
    RunCursor from(transfer.copies, Side::kSource), to(destination.copies, Side::kDestination);
    from.Seek(begin);
    to.Seek(begin);
    size_t requests = 0;
    while (begin < end) {
      list.Start(limits.requests);
      const WriteList::Way way{source_.data(), MemoryOf(source_), source_piece_,
                               local_keys_,    &destination,      1};
      const uint64_t added = list.Add(way, from, to, end - begin);
      if (added == 0) {
        ADD_FAILURE() << "no progress at " << begin;
        break;
      }
      begin += added;
      requests += list.requests();
      CarryOut(list.Finish(7, 9), limits);
    }
    return requests;
  }

  void CarryOut(const ibv_send_wr* request, const WriteList::Limits& limits) {
    size_t count = 0;
    for (; request != nullptr; request = request->next, ++count) {
      EXPECT_EQ(request->wr_id, 7u);
      const bool last = request->next == nullptr;
      EXPECT_EQ(request->opcode, last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
      EXPECT_EQ(request->send_flags, last ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u);
      if (last) {
        EXPECT_EQ(request->imm_data, htonl(9));
      }
      ASSERT_LE(static_cast<size_t>(request->num_sge), limits.pieces);
      uint64_t at = request->wr.rdma.remote_addr - region_->base;
      const uint64_t piece = at / region_->piece_bytes;
      EXPECT_EQ(request->wr.rdma.rkey, kRemoteKey + piece);
      uint64_t bytes = 0;
      for (int i = 0; i < request->num_sge; ++i) {
        const ibv_sge& sge = request->sg_list[i];
        const uint64_t offset = sge.addr - reinterpret_cast<uint64_t>(source_.data());
        ASSERT_LE(offset + sge.length, source_.size());
        EXPECT_EQ(sge.lkey, kLocalKey + offset / source_piece_);
        EXPECT_EQ(offset / source_piece_, (offset + sge.length - 1) / source_piece_)
            << "crosses a piece";
        ASSERT_LE(at + bytes + sge.length, destination_.size());
        std::memcpy(&destination_[at + bytes], source_.data() + offset, sge.length);
        bytes += sge.length;
      }
      EXPECT_LE(bytes, limits.request_bytes);
      EXPECT_EQ(piece, (at + bytes - 1) / region_->piece_bytes) << "crosses a piece";
    }
    EXPECT_LE(count, limits.requests);
  }

  void ExpectApplied(const Transfer& transfer) {
    const std::vector<std::byte> before(destination_.size(), kGuard);
    EXPECT_TRUE(destination_ == Applied(transfer, source_, before));
    destination_ = before;
  }

  std::vector<std::byte> source_ = RandomBytes(1 << 20, 1);
  std::vector<std::byte> destination_ = std::vector<std::byte>(1 << 20, kGuard);
  uint64_t source_piece_ = 0;
  std::vector<RegisteredMemory::Keys> local_keys_;
  std::shared_ptr<const RemoteRegion> region_;
};

TEST_F(WriteListTest, ALongRunIsOneRequestAChunk) {
  const Transfer transfer = Contiguous(1, 600000, 11, 222);
  EXPECT_EQ(Write(transfer, {16, 4, 65536}, 0, transfer.bytes), (600000 + 65535) / 65536u);
  ExpectApplied(transfer);
}

TEST_F(WriteListTest, ShortSourceRunsAreGathered) {
  const Transfer transfer = MakeTransfer(1, {Copy{5, 10, 128, {{1000, 700, 128}}}});
  EXPECT_EQ(Write(transfer, {16, 10, 65536}, 0, transfer.bytes), 100u);
  ExpectApplied(transfer);
}

TEST_F(WriteListTest, ShortDestinationRunsAreARequestEach) {
  const Transfer transfer = MakeTransfer(1, {Copy{5, 10, 128, {{1000, 128, 700}}}});
  EXPECT_EQ(Write(transfer, {16, 10, 65536}, 0, transfer.bytes), 1000u);
  ExpectApplied(transfer);
}

TEST_F(WriteListTest, RequestsStayWithinPiecesOfBothRegions) {
  Register(12288, 20480);
  const Transfer transfer = Contiguous(1, 900000, 100, 5000);
  Write(transfer, {7, 3, 65536}, 0, transfer.bytes);
  ExpectApplied(transfer);
}

TEST_F(WriteListTest, AnyShapeInAnyParts) {
  Register(40960, 8192);
  const std::vector<Transfer> transfers = {
      MakeTransfer(0, {Copy{0, 512, 4096, {{50, 8192, 4096}}}}),
      MakeTransfer(2, {Copy{7, 3, 6, {{100, 2000, 700}, {50, 16, 8}}}}),
      MakeTransfer(3, {Copy{90000, 11, 40, {{9, -10000, 20000}, {20, 400, 500}, {4, 50, 60}}}}),
      MakeTransfer(4, {Copy{0, 500000, 10001, {}}, Copy{20000, 0, 300, {{250, 301, 302}}},
                       Copy{500000, 600000, 300000, {}}})};
  for (const Transfer& transfer : transfers) {
    for (const uint64_t step : {uint64_t{4096}, uint64_t{20480}, transfer.bytes}) {
      for (uint64_t begin = 0; begin < transfer.bytes; begin += step) {
        Write(transfer, {5, 3, 16384}, begin, std::min(transfer.bytes, begin + step));
      }
      SCOPED_TRACE(transfer.id);
      ExpectApplied(transfer);
    }
  }
}

TEST_F(WriteListTest, TakesNoMoreRequestsThanThereIsRoom) {
  const Transfer transfer = MakeTransfer(1, {Copy{0, 0, 64, {{100, 64, 128}}}});
  Destination destination{region_, region_->base, transfer.copies};
  RunCursor from(transfer.copies, Side::kSource), to(transfer.copies, Side::kDestination);
  from.Seek(0);
  to.Seek(0);
  WriteList list({16, 4, 65536});
  list.Start(3);
  const WriteList::Way way{source_.data(), MemoryOf(source_), source_piece_,
                           local_keys_,    &destination,      1};
  EXPECT_EQ(list.Add(way, from, to, transfer.bytes), 3 * 64u);
  EXPECT_EQ(list.Add(way, from, to, transfer.bytes), 0u);
  EXPECT_EQ(list.requests(), 3u);
}

}  // namespace
}  // namespace xfer::verbs
