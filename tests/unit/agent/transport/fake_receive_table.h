// A receive table for tests: its own memory, real digests, and a record of every breach of the
// contract of ReceiveTable by the transport that calls it.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_FAKE_RECEIVE_TABLE_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_FAKE_RECEIVE_TABLE_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/transport/runs.h"
#include "agent/transport/transport.h"
#include "common/base/digest.h"

namespace xfer {

// Thread-safe.
class FakeReceiveTable final : public ReceiveTable {
 public:
  // `verify`: take digests and compare them; else only the number of bytes counts.
  explicit FakeReceiveTable(bool verify = true) : verify_(verify) {}

  // Expects `transfer` into new memory of `region_bytes`, all `fill`.
  void Add(const SyncKey& sync, const Transfer& transfer, uint64_t region_bytes, std::byte fill) {
    auto entry = std::make_unique<Entry>();
    entry->transfer = transfer;
    entry->own.assign(region_bytes, fill);
    entry->memory = {entry->own.data(), entry->own.size()};
    absl::MutexLock lock(&mu_);
    entries_[{sync, transfer.id}] = std::move(entry);
  }
  // Into the caller's memory.
  void Add(const SyncKey& sync, const Transfer& transfer, Memory memory) {
    auto entry = std::make_unique<Entry>();
    entry->transfer = transfer;
    entry->memory = memory;
    absl::MutexLock lock(&mu_);
    entries_[{sync, transfer.id}] = std::move(entry);
  }

  // Arrived() blocks (for 20 s at most) until Release().
  void Hold() {
    absl::MutexLock lock(&mu_);
    held_ = true;
  }
  void Release() {
    absl::MutexLock lock(&mu_);
    held_ = false;
    changed_.SignalAll();
  }

  absl::StatusOr<Target> Enter(const SyncKey& sync, TransferId transfer) override {
    absl::MutexLock lock(&mu_);
    Entry* entry = Find(sync, transfer);
    if (entry == nullptr) return absl::NotFoundError("no such sync or transfer");
    ++entry->entered;
    changed_.SignalAll();
    return Target{&entry->transfer, entry->memory};
  }

  void Leave(const SyncKey& sync, TransferId transfer) override {
    absl::MutexLock lock(&mu_);
    Entry* entry = Find(sync, transfer);
    if (entry == nullptr || entry->entered == 0) {
      breaches_.push_back(absl::StrCat("Leave without Enter of transfer ", transfer));
      return;
    }
    --entry->entered;
    changed_.SignalAll();
  }

  void Arrived(const SyncKey& sync, TransferId transfer, uint64_t begin, uint64_t end) override {
    Entry* entry = nullptr;
    {
      absl::MutexLock lock(&mu_);
      const absl::Time limit = absl::Now() + absl::Seconds(20);
      while (held_ && !changed_.WaitWithDeadline(&mu_, limit)) {
      }
      entry = Find(sync, transfer);
      if (entry == nullptr || entry->entered == 0) {
        breaches_.push_back(absl::StrCat("Arrived without Enter of transfer ", transfer));
        return;
      }
      CheckArrival(*entry, begin, end);
    }
    const uint64_t digest = verify_ ? Digest(*entry, begin, end) : 0;
    absl::MutexLock lock(&mu_);
    entry->digest += digest;
  }

  absl::Status Finished(const SyncKey& sync, TransferId transfer, uint64_t digest) override {
    absl::MutexLock lock(&mu_);
    Entry* entry = Find(sync, transfer);
    if (entry == nullptr) return absl::NotFoundError("no such sync or transfer");
    const uint64_t arrived = entry->arrived;
    const uint64_t own = entry->digest;
    // Whatever the result, the next attempt starts anew.
    entry->arrived = 0;
    entry->digest = 0;
    entry->ranges.clear();
    if (arrived != entry->transfer.bytes) {
      return absl::DataLossError(absl::StrCat("transfer ", transfer, ": ", arrived, " of ",
                                              entry->transfer.bytes, " bytes arrived"));
    }
    if (verify_ && own != digest) {
      return absl::DataLossError(absl::StrCat("transfer ", transfer, ": the digests differ"));
    }
    ++entry->done;
    return absl::OkStatus();
  }

  // How often a transfer was found to be done.
  int done(const SyncKey& sync, TransferId transfer) {
    absl::MutexLock lock(&mu_);
    return Find(sync, transfer)->done;
  }
  // What the transfer's own memory holds.
  std::vector<std::byte> bytes(const SyncKey& sync, TransferId transfer) {
    absl::MutexLock lock(&mu_);
    return Find(sync, transfer)->own;
  }
  // Waits (10 s at most) until everything entered has been left; false: it was not.
  bool WaitUntilLeft() {
    return WaitForEntered([](int entered) { return entered == 0; });
  }
  // Waits (10 s at most) until something is entered.
  bool WaitUntilEntered() {
    return WaitForEntered([](int entered) { return entered > 0; });
  }
  std::vector<std::string> breaches() {
    absl::MutexLock lock(&mu_);
    return breaches_;
  }

 private:
  struct Entry {
    Transfer transfer;
    std::vector<std::byte> own;
    Memory memory;
    int entered = 0;
    int done = 0;
    uint64_t arrived = 0;
    uint64_t digest = 0;
    std::map<uint64_t, uint64_t> ranges;  // begin -> end
  };

  template <typename Fn>
  bool WaitForEntered(Fn reached) {
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    absl::MutexLock lock(&mu_);
    while (true) {
      int entered = 0;
      for (const auto& [key, entry] : entries_) entered += entry->entered;
      if (reached(entered)) return true;
      if (changed_.WaitWithDeadline(&mu_, limit)) return false;
    }
  }

  Entry* Find(const SyncKey& sync, TransferId transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = entries_.find({sync, transfer});
    return it == entries_.end() ? nullptr : it->second.get();
  }

  void CheckArrival(Entry& entry, uint64_t begin, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t bytes = entry.transfer.bytes;
    const std::string what = absl::StrCat("Arrived [", begin, ", ", end, ") of ", bytes, " bytes");
    if (begin >= end || end > bytes) breaches_.push_back(absl::StrCat(what, ": not inside"));
    if (begin % kDigestLeafBytes != 0 || (end % kDigestLeafBytes != 0 && end != bytes)) {
      breaches_.push_back(absl::StrCat(what, ": not of whole leaves"));
    }
    const auto after = entry.ranges.lower_bound(begin);
    if ((after != entry.ranges.end() && after->first < end) ||
        (after != entry.ranges.begin() && std::prev(after)->second > begin)) {
      breaches_.push_back(absl::StrCat(what, ": arrived before"));
    }
    entry.ranges[begin] = end;
    entry.arrived += end - begin;
  }

  // Of what stands in the destination.
  static uint64_t Digest(const Entry& entry, uint64_t begin, uint64_t end) {
    uint64_t digest = 0;
    std::byte buffer[kDigestLeafBytes];
    if (entry.transfer.copies.size() == 1 && entry.transfer.copies[0].levels.empty()) {
      const std::byte* at = entry.memory.base + entry.transfer.copies[0].destination_offset + begin;
      return DigestRange(begin, absl::MakeSpan(at, end - begin));
    }
    for (uint64_t leaf = begin; leaf < end; leaf += kDigestLeafBytes) {
      const uint64_t stop = std::min(end, leaf + kDigestLeafBytes);
      std::byte* out = buffer;
      ForEachRun(entry.transfer, leaf, stop, [&](uint64_t, uint64_t destination, uint64_t bytes) {
        std::memcpy(out, entry.memory.base + destination, bytes);
        out += bytes;
      });
      digest += DigestLeaf(leaf / kDigestLeafBytes, absl::MakeSpan(buffer, stop - leaf));
    }
    return digest;
  }

  const bool verify_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<TransferKey, std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> breaches_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_FAKE_RECEIVE_TABLE_H_
