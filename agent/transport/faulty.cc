#include "agent/transport/faulty.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "agent/transport/runs.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// Counted over all endpoints of a transport.
struct Faults {
  explicit Faults(const FaultPlan& p) : plan(p) {}
  const FaultPlan plan;
  std::atomic<uint64_t> ranges{0};
  std::atomic<uint64_t> finishes{0};
};

// A sparse copy of source memory that holds one range's bytes, one bit of them changed; so the
// caller's own memory stays as it is.
class CorruptCopy {
 public:
  static absl::StatusOr<std::unique_ptr<CorruptCopy>> Make(const SendRange& range) {
    XFER_RETURN_IF_ERROR(CheckRange(range));
    void* base = mmap(nullptr, range.source.bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no address space for a copy of ", range.source.bytes, " bytes"));
    }
    auto copy = std::unique_ptr<CorruptCopy>(
        new CorruptCopy(Memory{static_cast<std::byte*>(base), range.source.bytes}));
    bool flipped = false;
    ForEachRun(*range.transfer, range.begin, range.end,
               [&](uint64_t source, uint64_t, uint64_t bytes) {
                 std::memcpy(copy->memory_.base + source, range.source.base + source, bytes);
                 if (!std::exchange(flipped, true)) copy->memory_.base[source] ^= std::byte{1};
               });
    return copy;
  }
  ~CorruptCopy() { munmap(memory_.base, memory_.bytes); }
  CorruptCopy(const CorruptCopy&) = delete;
  CorruptCopy& operator=(const CorruptCopy&) = delete;

  const Memory& memory() const { return memory_; }

 private:
  explicit CorruptCopy(Memory memory) : memory_(memory) {}
  const Memory memory_;
};

class FaultyEndpoint final : public Endpoint {
 public:
  FaultyEndpoint(std::unique_ptr<Endpoint> inner, std::shared_ptr<Faults> faults, std::string peer)
      : faults_(std::move(faults)), peer_(std::move(peer)), inner_(std::move(inner)) {}

  absl::Status PostRange(const SendRange& range) override;
  absl::Status PostFinish(const SyncKey& sync, const Transfer& transfer, uint64_t digest) override;
  absl::Status Poll(absl::Duration timeout, std::vector<Completion>& out) override;

 private:
  struct Delayed {
    absl::Time due;
    Completion completion;
  };

  absl::Status Broken() const {
    return absl::AbortedError(absl::StrCat("faulty to ", peer_, ": broken at range ",
                                           faults_->plan.break_at_range, " by the fault plan"));
  }
  // Without asking the wrapped endpoint.
  void Complete(const SendRange& range, absl::Status status) {
    Completion completion;
    completion.transfer = range.transfer->id;
    completion.begin = range.begin;
    completion.end = range.end;
    completion.status = std::move(status);
    delayed_.push_back({absl::Now() + faults_->plan.delay, std::move(completion)});
  }
  void TakeDue(std::vector<Completion>& out) {
    const absl::Time now = absl::Now();
    while (!delayed_.empty() && delayed_.front().due <= now) {
      out.push_back(std::move(delayed_.front().completion));
      delayed_.pop_front();
    }
  }

  const std::shared_ptr<Faults> faults_;
  const std::string peer_;
  std::vector<std::unique_ptr<CorruptCopy>> copies_;  // kept until the wrapped endpoint has gone
  absl::flat_hash_set<TransferId> lost_;  // transfers whose finish is not to be answered
  std::deque<Delayed> delayed_;           // in order of `due`
  std::unique_ptr<Endpoint> inner_;       // null: broken
};

absl::Status FaultyEndpoint::PostRange(const SendRange& range) {
  if (inner_ == nullptr) return Broken();
  const FaultPlan& plan = faults_->plan;
  const uint64_t n = ++faults_->ranges;
  if (n == plan.break_at_range) {
    inner_ = nullptr;  // what was posted before dies with it; Poll() says so
    return absl::OkStatus();
  }
  if (n == plan.drop_range) {
    Complete(range, absl::OkStatus());
    return absl::OkStatus();
  }
  if (n == plan.fail_range) {
    Complete(range, absl::UnavailableError(absl::StrCat("faulty to ", peer_, ": range ", n,
                                                        " failed by the fault plan")));
    return absl::OkStatus();
  }
  SendRange sent = range;
  if (n == plan.corrupt_range) {
    XFER_ASSIGN_OR_RETURN(std::unique_ptr<CorruptCopy> copy, CorruptCopy::Make(range));
    sent.source = copy->memory();
    copies_.push_back(std::move(copy));
  }
  absl::Status status = inner_->PostRange(sent);
  // A range that did not get in will be posted again, and is the n-th then.
  if (absl::IsUnavailable(status)) --faults_->ranges;
  return status;
}

absl::Status FaultyEndpoint::PostFinish(const SyncKey& sync, const Transfer& transfer,
                                        uint64_t digest) {
  if (inner_ == nullptr) return Broken();
  if (++faults_->finishes == faults_->plan.lose_finish) lost_.insert(transfer.id);
  return inner_->PostFinish(sync, transfer, digest);
}

absl::Status FaultyEndpoint::Poll(absl::Duration timeout, std::vector<Completion>& out) {
  const absl::Time deadline = absl::Now() + timeout;
  const size_t before = out.size();
  while (true) {
    TakeDue(out);
    if (out.size() > before) return absl::OkStatus();
    if (inner_ == nullptr) return Broken();
    absl::Duration wait = std::max(deadline - absl::Now(), absl::ZeroDuration());
    if (!delayed_.empty()) wait = std::min(wait, delayed_.front().due - absl::Now());
    std::vector<Completion> arrived;
    XFER_RETURN_IF_ERROR(inner_->Poll(std::max(wait, absl::ZeroDuration()), arrived));
    const absl::Time due = absl::Now() + faults_->plan.delay;
    for (Completion& completion : arrived) {
      if (completion.finish && lost_.erase(completion.transfer) > 0) continue;
      delayed_.push_back({due, std::move(completion)});
    }
    TakeDue(out);
    if (out.size() > before || absl::Now() >= deadline) return absl::OkStatus();
  }
}

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, const FaultPlan& plan)
      : inner_(std::move(inner)),
        faults_(std::make_shared<Faults>(plan)),
        name_(absl::StrCat("faulty(", inner_->name(), ")")) {}

  absl::string_view name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress& peer,
                                                    absl::Time deadline) override {
    XFER_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> inner, inner_->Connect(peer, deadline));
    return std::make_unique<FaultyEndpoint>(std::move(inner), faults_, peer.node);
  }
  absl::Status Register(const Memory& memory) override { return inner_->Register(memory); }
  void Unregister(const Memory& memory) override { inner_->Unregister(memory); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<Faults> faults_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> inner,
                                               const FaultPlan& faults) {
  return std::make_unique<FaultyTransport>(std::move(inner), faults);
}

}  // namespace xfer
