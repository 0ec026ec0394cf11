#include "agent/exec/transfer_digest.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/digest.h"

namespace xfer {
namespace {

// Hashes a stream that is given span by span.
class LeafHasher {
 public:
  explicit LeafHasher(uint64_t begin) : leaf_(begin / kDigestLeafBytes) {}

  // Spans that continue each other in memory are taken as one.
  void Add(const std::byte* data, uint64_t bytes) {
    if (pending_bytes_ != 0 && pending_ + pending_bytes_ == data) {
      pending_bytes_ += bytes;
      return;
    }
    Flush();
    pending_ = data;
    pending_bytes_ = bytes;
  }

  uint64_t Finish() {
    Flush();
    if (fill_ > 0) sum_ += DigestLeaf(leaf_, {gathered_.data(), fill_});
    return sum_;
  }

 private:
  void Flush() {
    while (pending_bytes_ > 0) {
      if (fill_ == 0 && pending_bytes_ >= kDigestLeafBytes) {
        const uint64_t leaves = pending_bytes_ / kDigestLeafBytes;
        const uint64_t whole = leaves * kDigestLeafBytes;
        sum_ += DigestRange(leaf_ * kDigestLeafBytes, {pending_, whole});
        leaf_ += leaves;
        Consume(whole);
        continue;
      }
      const uint64_t take = std::min(pending_bytes_, kDigestLeafBytes - fill_);
      memcpy(gathered_.data() + fill_, pending_, take);
      fill_ += take;
      Consume(take);
      if (fill_ == kDigestLeafBytes) {
        sum_ += DigestLeaf(leaf_++, gathered_);
        fill_ = 0;
      }
    }
  }

  void Consume(uint64_t bytes) {
    pending_ += bytes;
    pending_bytes_ -= bytes;
  }

  uint64_t leaf_;  // the next to be hashed
  uint64_t sum_ = 0;
  const std::byte* pending_ = nullptr;
  uint64_t pending_bytes_ = 0;
  uint64_t fill_ = 0;
  std::array<std::byte, kDigestLeafBytes> gathered_;
};

}  // namespace

uint64_t DigestOfTransfer(const Transfer& transfer, TransferSide side, const std::byte* base,
                          uint64_t begin, uint64_t end) {
  LeafHasher hasher(begin);
  ForEachRun(transfer, begin, end, [&](uint64_t source, uint64_t destination, uint64_t bytes) {
    hasher.Add(base + (side == TransferSide::kSource ? source : destination), bytes);
  });
  return hasher.Finish();
}

}  // namespace xfer
