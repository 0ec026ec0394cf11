#include "coordinator/sync/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"

namespace xfer {
namespace {

// Agents name transports with the ports that they used: there are few, but anyone may send any.
constexpr size_t kMaxTransports = 255;
constexpr size_t kLongestTransport = 256;

}  // namespace

SyncRecord::SyncRecord(v1::Sync initial, int64_t trigger_ns)
    : id_(initial.id()), job_(initial.job()), trigger_ns_(trigger_ns), sync_(std::move(initial)) {}

v1::Sync SyncRecord::Snapshot() const {
  absl::MutexLock lock(&mu_);
  return sync_;
}

bool SyncRecord::ended() const {
  absl::MutexLock lock(&mu_);
  return sync_.state() != v1::SYNC_STATE_RUNNING;
}

void SyncRecord::Update(absl::FunctionRef<void(v1::Sync&)> change) {
  {
    absl::MutexLock lock(&mu_);
    change(sync_);
  }
  watchers_.Notify();
}

void SyncRecord::SetNames(std::shared_ptr<const TransferNames> names) {
  absl::MutexLock lock(&mu_);
  names_ = std::move(names);
}

uint8_t SyncRecord::TransportIndex(const std::string& full_name) {
  const std::string name = full_name.substr(0, kLongestTransport);
  auto it = std::find(transports_.begin(), transports_.end(), name);
  if (it == transports_.end() && transports_.size() < kMaxTransports) {
    transports_.push_back(name);
    it = std::prev(transports_.end());
  }
  return static_cast<uint8_t>(it - transports_.begin());  // the end: an unknown one, told as ""
}

absl::Status SyncRecord::AddTimings(const std::string& node, const v1::TransferTimings& timings) {
  absl::MutexLock lock(&mu_);
  if (!keep_timings_) return absl::OkStatus();
  const size_t known = names_ == nullptr ? 0 : names_->transfers.size();
  if (timings_.size() + timings.transfers_size() > 2 * known) {  // either end may report
    return absl::InvalidArgumentError(absl::StrCat("node ", node, " reports more timings for sync ",
                                                   id_, " than the two ends of its plan's ", known,
                                                   " transfers can have"));
  }
  for (const v1::TransferTiming& t : timings.transfers()) {
    if (t.transfer() >= known) {
      return absl::InvalidArgumentError(absl::StrCat("node ", node, " reports transfer ",
                                                     t.transfer(), " for sync ", id_,
                                                     "; its plan has ", known, " transfers"));
    }
    timings_.push_back({t.transfer(), t.retries(), t.start_ns() - trigger_ns_,
                        t.end_ns() - trigger_ns_, t.bytes(), TransportIndex(t.transport())});
  }
  return absl::OkStatus();
}

std::vector<v1::TransferTiming> SyncRecord::Timings() const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::TransferTiming> out;
  out.reserve(timings_.size());
  for (const Timing& t : timings_) {
    v1::TransferTiming timing;
    timing.set_transfer(t.transfer);
    timing.set_start_ns(t.start_ns);
    timing.set_end_ns(t.end_ns);
    timing.set_bytes(t.bytes);
    timing.set_retries(t.retries);
    if (t.transport < transports_.size()) timing.set_transport(transports_[t.transport]);
    const TransferNames::Row& row = names_->transfers[t.transfer];
    *timing.mutable_source() = ToProto(names_->ranks[row.source]);
    *timing.mutable_destination() = ToProto(names_->ranks[row.destination]);
    timing.set_tensor(names_->TensorOf(t.transfer));
    out.push_back(std::move(timing));
  }
  return out;
}

void SyncRecord::DropTimings() {
  absl::MutexLock lock(&mu_);
  keep_timings_ = false;
  timings_ = {};
  names_.reset();
}

void History::Add(std::shared_ptr<SyncRecord> record) {
  absl::MutexLock lock(&mu_);
  list_.push_back(std::move(record));
  if (list_.size() > with_timings_) list_[list_.size() - 1 - with_timings_]->DropTimings();
  if (list_.size() > records_) list_.pop_front();
}

absl::StatusOr<std::shared_ptr<SyncRecord>> History::Find(uint64_t id) const {
  absl::MutexLock lock(&mu_);
  if (id == 0) {
    if (!list_.empty()) return list_.back();
    return absl::NotFoundError("there has been no sync yet; trigger one first");
  }
  auto it = std::find_if(list_.rbegin(), list_.rend(),
                         [id](const auto& record) { return record->id() == id; });
  if (it != list_.rend()) return *it;
  return absl::NotFoundError(list_.empty()
                                 ? absl::StrCat("no sync ", id, ": there has been none yet")
                                 : absl::StrCat("no sync ", id, "; kept are ", list_.front()->id(),
                                                " to ", list_.back()->id()));
}

std::vector<std::shared_ptr<SyncRecord>> History::List(const std::string& job, size_t limit) const {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<SyncRecord>> out;
  for (auto it = list_.rbegin(); it != list_.rend() && out.size() < limit; ++it) {
    if (job.empty() || (*it)->job() == job) out.push_back(*it);
  }
  return out;
}

}  // namespace xfer
