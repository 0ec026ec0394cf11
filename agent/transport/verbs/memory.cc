#include "agent/transport/verbs/memory.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer::verbs {
namespace {

constexpr uint64_t kPageBytes = 4096;

std::string Range(const Memory& memory) {
  return absl::StrFormat("%d bytes at %p", memory.bytes, memory.base);
}

}  // namespace

absl::StatusOr<std::shared_ptr<RegisteredMemory>> RegisteredMemory::Register(
    const Rails& rails, const Memory& memory, uint64_t piece_bytes, bool relaxed_ordering) {
  std::shared_ptr<RegisteredMemory> registered(new RegisteredMemory(memory, piece_bytes));
  // Relaxed ordering is one of libibverbs' optional flags: a kernel or device without it ignores it
  // (man ibv_reg_mr). What it means for readers is written at Receiver in receiver.h.
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                     (relaxed_ordering ? IBV_ACCESS_RELAXED_ORDERING : 0);
  for (const Rails::Device& device : rails.devices()) {
    std::vector<Keys>& keys = registered->keys_.emplace_back();
    for (uint64_t at = 0; at < memory.bytes; at += piece_bytes) {
      const uint64_t bytes = std::min(piece_bytes, memory.bytes - at);
      XFER_ASSIGN_OR_RETURN(MemoryRegion region,
                            MemoryRegion::Register(device.pd, memory.base + at, bytes, access));
      keys.push_back({region.lkey(), region.rkey()});
      registered->regions_.push_back(std::move(region));
    }
  }
  // Now that its pages are there, it is known where they are.
  registered->nearness_ = rails.NearnessTo(memory);
  return registered;
}

void RegisteredMemory::Drop() {
  dropped_.store(true, std::memory_order_release);
  regions_.clear();
}

MemoryTable::MemoryTable(std::shared_ptr<Rails> rails, uint64_t region_bytes, bool relaxed_ordering)
    : rails_(std::move(rails)), relaxed_ordering_(relaxed_ordering) {
  piece_bytes_ = region_bytes == 0 ? std::numeric_limits<uint64_t>::max() : region_bytes;
  for (const Rails::Device& device : rails_->devices()) {
    piece_bytes_ = std::min(piece_bytes_, device.context.attributes().max_mr_size);
  }
  piece_bytes_ -= piece_bytes_ % kPageBytes;
}

MemoryTable::~MemoryTable() {
  absl::MutexLock lock(&mu_);
  for (const auto& [base, region] : regions_) region->Drop();
}

absl::Status MemoryTable::Add(const Memory& memory) {
  if (memory.base == nullptr || memory.bytes == 0) {
    return absl::InvalidArgumentError("verbs: memory to register must not be empty");
  }
  const auto overlaps = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const auto next = regions_.lower_bound(memory.base);
    if (next != regions_.end() && next->first < memory.base + memory.bytes) return true;
    if (next == regions_.begin()) return false;
    const Memory& before = std::prev(next)->second->memory();
    return before.base + before.bytes > memory.base;
  };
  const absl::Status taken = absl::AlreadyExistsError(absl::StrCat(
      "verbs: ", Range(memory), " overlap memory that is registered; unregister that first"));
  {
    absl::MutexLock lock(&mu_);
    if (overlaps()) return taken;
  }
  const absl::Time start = absl::Now();
  // Without the lock: registering pins every page, some 10 s for a terabyte.
  absl::StatusOr<std::shared_ptr<RegisteredMemory>> registered =
      RegisteredMemory::Register(*rails_, memory, piece_bytes_, relaxed_ordering_);
  if (!registered.ok()) {
    return Annotate(registered.status(), absl::StrCat("verbs: cannot register ", Range(memory)));
  }
  spdlog::debug("verbs: registered {} bytes in {} pieces with {} devices in {}", memory.bytes,
                (*registered)->pieces(), rails_->devices().size(),
                absl::FormatDuration(absl::Now() - start));
  absl::MutexLock lock(&mu_);
  if (overlaps()) return taken;
  regions_[memory.base] = *std::move(registered);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RegisteredMemory>> MemoryTable::AddUnlisted(
    const Memory& memory) const {
  absl::StatusOr<std::shared_ptr<RegisteredMemory>> registered =
      RegisteredMemory::Register(*rails_, memory, piece_bytes_, relaxed_ordering_);
  if (registered.ok()) return registered;
  return Annotate(registered.status(), absl::StrCat("verbs: cannot register ", Range(memory)));
}

std::shared_ptr<RegisteredMemory> MemoryTable::Remove(const Memory& memory) {
  std::shared_ptr<RegisteredMemory> region;
  {
    absl::MutexLock lock(&mu_);
    const auto it = regions_.find(memory.base);
    if (it == regions_.end()) return nullptr;
    region = std::move(it->second);
    regions_.erase(it);
  }
  region->Drop();
  return region;
}

absl::StatusOr<std::shared_ptr<RegisteredMemory>> MemoryTable::Find(const Memory& memory) const {
  absl::MutexLock lock(&mu_);
  auto it = regions_.upper_bound(memory.base);
  if (it != regions_.begin() && (--it)->second->Contains(memory)) return it->second;
  return absl::FailedPreconditionError(absl::StrCat(
      "verbs: ", Range(memory), " are not registered with this transport; Register() first"));
}

}  // namespace xfer::verbs
