#include "agent/transport/local.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "agent/transport/copy_pool.h"
#include "agent/transport/runs.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// Ranges that were posted and whose completions were not taken yet, an endpoint.
constexpr size_t kMaxQueued = 4096;

class LocalEndpoint final : public Endpoint {
 public:
  LocalEndpoint(std::shared_ptr<CopyPool> pool, ReceiveTable* table, std::string peer)
      : pool_(std::move(pool)), table_(table), peer_(std::move(peer)) {}

  ~LocalEndpoint() override {
    pool_->Cancel(this);
    // Bounded by the blocks being copied: returning earlier would leave the source memory being
    // read.
    absl::MutexLock lock(&mu_);
    while (jobs_ > 0) changed_.Wait(&mu_);
  }

  absl::Status PostRange(const SendRange& range) override;
  absl::Status PostFinish(const SyncKey& sync, const Transfer& transfer, uint64_t digest) override;
  absl::Status Poll(absl::Duration timeout, std::vector<Completion>& out) override;

 private:
  class RangeJob;
  class FinishJob;

  struct State {
    uint64_t ranges = 0;  // not copied yet
    bool finishing = false;
    uint64_t digest = 0;
    absl::Status refused;  // the first range that was
  };

  void RangeDone(const TransferKey& key, const Completion& completion);
  void FinishDone(const TransferKey& key, absl::Status status);
  // What Enter() or, if that allows it, Finished() says.
  absl::Status Finish(const TransferKey& key, uint64_t digest, absl::Status refused);

  const std::shared_ptr<CopyPool> pool_;
  ReceiveTable* const table_;
  const std::string peer_;

  absl::Mutex mu_;
  absl::CondVar changed_;
  uint64_t jobs_ ABSL_GUARDED_BY(mu_) = 0;    // submitted and not done
  uint64_t ranges_ ABSL_GUARDED_BY(mu_) = 0;  // of them, those of ranges
  absl::flat_hash_map<TransferKey, State> states_ ABSL_GUARDED_BY(mu_);
  std::vector<Completion> completions_ ABSL_GUARDED_BY(mu_);
};

// Copies a range block by block. The table has been entered.
class LocalEndpoint::RangeJob final : public CopyPool::Job {
 public:
  RangeJob(LocalEndpoint* owner, const SendRange& range, const ReceiveTable::Target& target)
      : Job(owner, (range.end - range.begin + kBlockBytes - 1) / kBlockBytes),
        owner_(owner),
        range_(range),
        target_(target),
        same_copies_(target.transfer == range.transfer ||
                     target.transfer->copies == range.transfer->copies) {}

  void Step(uint64_t step) override {
    const uint64_t begin = range_.begin + step * kBlockBytes;
    const uint64_t end = std::min(range_.end, begin + kBlockBytes);
    if (same_copies_) {
      // Plain stores: non-temporal ones are 1.2 to 1.6 times as fast here, but where the table then
      // takes the digest they leave the bytes out of the cache, and lose that again (measured: as
      // fast, or 6% slower).
      CopyRuns(*range_.transfer, range_.source.base, target_.memory.base, begin, end);
    } else {
      // The sender's copies start in staging memory; only the stream is common to the two.
      std::vector<std::byte> block(end - begin);
      PackRuns(*range_.transfer, range_.source.base, begin, end, block.data());
      UnpackRuns(*target_.transfer, target_.memory.base, begin, end, block.data());
    }
    owner_->table_->Arrived(range_.sync, range_.transfer->id, begin, end);
  }

  void Done(bool cancelled) override {
    Completion completion;
    completion.transfer = range_.transfer->id;
    completion.begin = range_.begin;
    completion.end = range_.end;
    if (cancelled) completion.status = absl::CancelledError("the endpoint was destroyed");
    owner_->table_->Leave(range_.sync, range_.transfer->id);
    owner_->RangeDone({range_.sync, range_.transfer->id}, completion);
  }

 private:
  LocalEndpoint* const owner_;
  const SendRange range_;
  const ReceiveTable::Target target_;
  const bool same_copies_;
};

class LocalEndpoint::FinishJob final : public CopyPool::Job {
 public:
  FinishJob(LocalEndpoint* owner, const TransferKey& key, uint64_t digest, absl::Status refused)
      : Job(owner, 1), owner_(owner), key_(key), digest_(digest), refused_(std::move(refused)) {}
  void Step(uint64_t) override { status_ = owner_->Finish(key_, digest_, std::move(refused_)); }
  void Done(bool cancelled) override {
    owner_->FinishDone(
        key_, cancelled ? absl::CancelledError("the endpoint was destroyed") : std::move(status_));
  }

 private:
  LocalEndpoint* const owner_;
  const TransferKey key_;
  const uint64_t digest_;
  absl::Status refused_;
  absl::Status status_;
};

absl::Status LocalEndpoint::PostRange(const SendRange& range) {
  if (absl::Status status = CheckRange(range); !status.ok()) {
    return Annotate(status, absl::StrCat("local to ", peer_));
  }
  const TransferKey key{range.sync, range.transfer->id};
  {
    absl::MutexLock lock(&mu_);
    if (ranges_ + completions_.size() >= kMaxQueued) {
      return absl::UnavailableError(
          absl::StrCat("local to ", peer_, ": ", kMaxQueued, " ranges are queued; Poll() first"));
    }
  }
  absl::StatusOr<ReceiveTable::Target> target = table_->Enter(range.sync, range.transfer->id);
  absl::Status refused = target.status();
  if (refused.ok() && range.end > target->transfer->bytes) {
    refused = absl::InvalidArgumentError(absl::StrCat("range ends at ", range.end, " of transfer ",
                                                      key.transfer, ", which has ",
                                                      target->transfer->bytes, " bytes"));
    table_->Leave(range.sync, range.transfer->id);
  }
  if (!refused.ok()) {
    Completion completion;
    completion.transfer = key.transfer;
    completion.begin = range.begin;
    completion.end = range.end;
    completion.status = refused;
    absl::MutexLock lock(&mu_);
    // A status of its own: the two may end in different threads.
    states_[key].refused.Update(absl::Status(refused.code(), refused.message()));
    completions_.push_back(std::move(completion));
    return absl::OkStatus();
  }
  {
    absl::MutexLock lock(&mu_);
    ++jobs_;
    ++ranges_;
    ++states_[key].ranges;
  }
  pool_->Submit(std::make_shared<RangeJob>(this, range, *target));
  return absl::OkStatus();
}

absl::Status LocalEndpoint::PostFinish(const SyncKey& sync, const Transfer& transfer,
                                       uint64_t digest) {
  const TransferKey key{sync, transfer.id};
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    State& state = states_[key];
    if (state.finishing) {
      return absl::InvalidArgumentError(absl::StrCat("local to ", peer_, ": transfer ", transfer.id,
                                                     " is being finished already"));
    }
    state.finishing = true;
    state.digest = digest;
    ++jobs_;
    if (state.ranges > 0) return absl::OkStatus();  // the last range takes it on
    refused = std::move(state.refused);
  }
  pool_->Submit(std::make_shared<FinishJob>(this, key, digest, std::move(refused)));
  return absl::OkStatus();
}

absl::Status LocalEndpoint::Finish(const TransferKey& key, uint64_t digest, absl::Status refused) {
  if (!refused.ok()) return refused;
  XFER_RETURN_IF_ERROR(table_->Enter(key.sync, key.transfer).status());
  absl::Status status = table_->Finished(key.sync, key.transfer, digest);
  table_->Leave(key.sync, key.transfer);
  return status;
}

void LocalEndpoint::RangeDone(const TransferKey& key, const Completion& completion) {
  bool finish = false;
  uint64_t digest = 0;
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    State& state = states_[key];
    state.refused.Update(completion.status);
    finish = --state.ranges == 0 && state.finishing;
    digest = state.digest;
    if (finish) refused = std::move(state.refused);
    --ranges_;
    completions_.push_back(completion);
    if (!finish) {
      // Under the lock, and the last access to this object: the destructor may be waiting for it.
      --jobs_;
      changed_.SignalAll();
      return;
    }
  }
  FinishDone(key, Finish(key, digest, std::move(refused)));
  absl::MutexLock lock(&mu_);
  --jobs_;
  changed_.SignalAll();
}

void LocalEndpoint::FinishDone(const TransferKey& key, absl::Status status) {
  Completion completion;
  completion.transfer = key.transfer;
  completion.finish = true;
  completion.status = std::move(status);
  absl::MutexLock lock(&mu_);
  states_.erase(key);
  completions_.push_back(std::move(completion));
  --jobs_;
  changed_.SignalAll();
}

absl::Status LocalEndpoint::Poll(absl::Duration timeout, std::vector<Completion>& out) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::MutexLock lock(&mu_);
  while (completions_.empty()) {
    if (timeout <= absl::ZeroDuration() || changed_.WaitWithDeadline(&mu_, deadline)) break;
  }
  std::move(completions_.begin(), completions_.end(), std::back_inserter(out));
  completions_.clear();
  return absl::OkStatus();
}

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(const LocalOptions& options)
      : table_(options.table), pool_(std::make_shared<CopyPool>(Threads(options.threads))) {}

  absl::string_view name() const override { return "local"; }

  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress& peer, absl::Time) override {
    if (table_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "local to ", peer.node, ": this transport was made without a receive table"));
    }
    return std::make_unique<LocalEndpoint>(pool_, table_, peer.node);
  }

 private:
  static int Threads(int wanted) {
    if (wanted > 0) return wanted;
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  }

  ReceiveTable* const table_;
  const std::shared_ptr<CopyPool> pool_;
};

}  // namespace

std::unique_ptr<Transport> MakeLocalTransport(const LocalOptions& options) {
  return std::make_unique<LocalTransport>(options);
}

}  // namespace xfer
