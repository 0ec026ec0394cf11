#include "agent/exec/sync_failures.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

constexpr size_t kMaxReported = 64;
constexpr int kMaxReportedAnEngine = 8;

}  // namespace

SyncFailures::SyncFailures(std::shared_ptr<const PlanPart> part, std::function<void()> on_change)
    : part_(std::move(part)), on_change_(std::move(on_change)) {
  absl::flat_hash_map<std::pair<Role, int32_t>, int32_t> engines;
  for (const PartRank& rank : part_->ranks) {
    const auto next = static_cast<int32_t>(engines.size());
    engine_of_.push_back(engines.try_emplace({rank.id.role, rank.id.engine}, next).first->second);
  }
  engines_ = std::vector<Engine>(engines.size());
}

bool SyncFailures::FailEngineLocked(Engine& engine, const absl::Status& cause) {
  if (first_.ok()) first_ = cause;
  if (engine.failed.load(std::memory_order_relaxed)) return false;
  engine.status = cause;
  engine.failed.store(true, std::memory_order_release);
  return true;
}

void SyncFailures::FailTransfer(uint32_t transfer, const absl::Status& cause) {
  const Transfer& planned = part_->transfers[transfer].planned;
  const PartRank& source = part_->ranks[planned.source];
  const PartRank& destination = part_->ranks[planned.destination];
  // What the other side answered may name the transfer already.
  const std::string what = part_->Describe(planned);
  const absl::Status bare(cause.code(),
                          absl::StrReplaceAll(cause.message(), {{absl::StrCat(what, ": "), ""}}));
  const absl::Status status = Annotate(bare, what);
  {
    absl::MutexLock lock(&mu_);
    Engine& engine = engines_[engine_of_[planned.destination]];
    FailEngineLocked(engine, status);
    if (report_.size() < kMaxReported && engine.reported < kMaxReportedAnEngine) {
      ++engine.reported;
      v1::TransferFailure& failure = report_.emplace_back();
      failure.set_transfer(planned.id);
      *failure.mutable_source() = ToProto(source.id);
      *failure.mutable_destination() = ToProto(destination.id);
      failure.set_source_node(source.node);
      failure.set_destination_node(destination.node);
      failure.set_tensor(part_->TensorName(planned));
      *failure.mutable_outcome() = ToOutcome(bare);
    }
  }
  on_change_();
}

void SyncFailures::FailRank(int32_t rank, const absl::Status& cause) {
  {
    absl::MutexLock lock(&mu_);
    if (!FailEngineLocked(engines_[engine_of_[rank]], cause)) return;
  }
  on_change_();
}

void SyncFailures::FailAll(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mu_);
    for (Engine& engine : engines_) FailEngineLocked(engine, cause);
  }
  on_change_();
}

absl::Status SyncFailures::StatusOf(int32_t rank) const {
  absl::MutexLock lock(&mu_);
  return engines_[engine_of_[rank]].status;
}

absl::Status SyncFailures::first() const {
  absl::MutexLock lock(&mu_);
  return first_;
}

std::vector<v1::TransferFailure> SyncFailures::Report() const {
  absl::MutexLock lock(&mu_);
  return report_;
}

}  // namespace xfer
