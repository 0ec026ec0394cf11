// Transfers, memory and digests for tests of transports. Expansion of copies is written anew here,
// in the plainest way, so that it can judge ForEachRun's users.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_TEST_TRANSFERS_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_TEST_TRANSFERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "agent/transport/transport.h"
#include "common/base/digest.h"
#include "common/plan/plan.h"

namespace xfer {

// What a destination holds where nothing was written.
inline constexpr std::byte kGuard{0xEE};

inline Transfer MakeTransfer(TransferId id, std::vector<Copy> copies) {
  Transfer transfer;
  transfer.id = id;
  transfer.copies = std::move(copies);
  for (const Copy& copy : transfer.copies) transfer.bytes += copy.bytes();
  return transfer;
}

inline Transfer Contiguous(TransferId id, uint64_t bytes, uint64_t source_offset = 0,
                           uint64_t destination_offset = 0) {
  return MakeTransfer(id, {Copy{source_offset, destination_offset, bytes, {}}});
}

// fn(source offset, destination offset, bytes) for each run of the copy below `level`, in order.
template <typename Fn>
void ForEachRunOf(const Copy& copy, size_t level, uint64_t source, uint64_t destination, Fn& fn) {
  if (level == copy.levels.size()) return fn(source, destination, copy.run);
  const CopyLevel& repeat = copy.levels[level];
  for (uint64_t i = 0; i < repeat.count; ++i) {
    ForEachRunOf(copy, level + 1, source + i * static_cast<uint64_t>(repeat.source_stride),
                 destination + i * static_cast<uint64_t>(repeat.destination_stride), fn);
  }
}

inline std::vector<std::byte> StreamOf(const Transfer& transfer,
                                       const std::vector<std::byte>& source) {
  std::vector<std::byte> stream;
  stream.reserve(transfer.bytes);
  const auto append = [&](uint64_t from, uint64_t, uint64_t bytes) {
    stream.insert(stream.end(), source.begin() + from, source.begin() + from + bytes);
  };
  for (const Copy& copy : transfer.copies) {
    ForEachRunOf(copy, 0, copy.source_offset, copy.destination_offset, append);
  }
  return stream;
}

inline uint64_t SourceDigest(const Transfer& transfer, const std::vector<std::byte>& source) {
  return DigestRange(0, StreamOf(transfer, source));
}

// What `before` becomes when the transfer has been applied to it.
inline std::vector<std::byte> Applied(const Transfer& transfer,
                                      const std::vector<std::byte>& source,
                                      std::vector<std::byte> before) {
  const auto apply = [&](uint64_t from, uint64_t to, uint64_t bytes) {
    std::copy_n(source.begin() + from, bytes, before.begin() + to);
  };
  for (const Copy& copy : transfer.copies) {
    ForEachRunOf(copy, 0, copy.source_offset, copy.destination_offset, apply);
  }
  return before;
}

// Bytes that are never kGuard.
inline std::vector<std::byte> RandomBytes(uint64_t bytes, uint32_t seed) {
  std::vector<std::byte> data(bytes);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < data.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random() & 0x7f7f7f7f7f7f7f7f;
    std::memcpy(data.data() + i, &word, std::min(sizeof(word), data.size() - i));
  }
  return data;
}

inline Memory MemoryOf(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }

// [0, bytes) cut into ranges of at most `step` (a multiple of kDigestLeafBytes).
inline std::vector<SendRange> Ranges(const SyncKey& sync, const Transfer& transfer, Memory source,
                                     uint64_t step) {
  std::vector<SendRange> ranges;
  for (uint64_t begin = 0; begin < transfer.bytes; begin += step) {
    ranges.push_back({sync, &transfer, source, begin, std::min(transfer.bytes, begin + step)});
  }
  return ranges;
}

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_TEST_TRANSFERS_H_
