#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/emulator/emulated_rank.h"
#include "common/base/status.h"
#include "common/checkpoint/shards.h"
#include "common/checkpoint/values.h"
#include "spdlog/spdlog.h"

namespace xfer {
namespace {

constexpr uint64_t kNoiseBlock = 8u << 20;

}  // namespace

absl::Status EmulatedRollout::Load() {
  // Noise over every byte, so that a byte that no sync writes cannot pass for one that it did.
  const TensorKey key = SeededKey(absl::StrCat("noise of ", id_.ToString()), context_.seed);
  const absl::Span<std::byte> memory = memory_->whole();
  return context_.pool->Run((memory.size() + kNoiseBlock - 1) / kNoiseBlock, [&](size_t i) {
    const uint64_t begin = i * kNoiseBlock;
    SynthesizeRun(key, DType::kU8, begin,
                  memory.subspan(begin, std::min(kNoiseBlock, memory.size() - begin)));
    return absl::OkStatus();
  });
}

RankOptions EmulatedRollout::Options() const {
  RankOptions options;
  options.world = context_.spec.rollout.gpus_per_engine;
  options.device = id_.rank % context_.spec.gpus_per_node;
  options.hooks = {Hook::kPause, Hook::kPostLoad, Hook::kResume};
  return options;
}

int64_t EmulatedRollout::version() const {
  absl::MutexLock lock(&mu_);
  return version_;
}

absl::Status EmulatedRollout::OnHook(const HookCall& call) {
  if (call.hook == Hook::kPause) return Pause(call);
  if (call.hook == Hook::kResume) Resume(call);
  return absl::OkStatus();  // nothing is derived from the weights here, so there is nothing to do
                            // post-load
}

absl::Status EmulatedRollout::Pause(const HookCall& call) {
  absl::MutexLock lock(&mu_);
  const auto rests = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !checking_; };
  if (!mu_.AwaitWithDeadline(absl::Condition(&rests), call.deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat(id_.ToString(), " is still checking the version before"));
  }
  return absl::OkStatus();
}

void EmulatedRollout::Resume(const HookCall& call) {
  if (!call.outcome.ok()) {
    spdlog::warn("{}: sync {} of version {} failed: {}", id_.ToString(), call.sync_id, call.version,
                 call.outcome.ToString());
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    version_ = call.version;
    if (!context_.check || checking_) return;
    checking_ = true;
  }
  const int64_t version = call.version;
  context_.pool->Start(
      memory_->layout().tensors.size(),
      [this, version](size_t i) {
        return CheckAgainstCheckpoint(memory_->layout().tensors[i], context_.table,
                                      *context_.checkpoint, version, memory_->tensor(i));
      },
      [this, version](const absl::Status& verdict) {
        {
          absl::MutexLock lock(&mu_);
          checking_ = false;
        }
        if (absl::IsCancelled(verdict)) return;
        if (!verdict.ok())
          spdlog::error("{} at version {}: {}", id_.ToString(), version, verdict.ToString());
        Report([&](RegisteredRank& rank) { return rank.ReportVerdict(version, verdict); });
      });
}

}  // namespace xfer
