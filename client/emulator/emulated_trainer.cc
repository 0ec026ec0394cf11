#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/emulator/emulated_rank.h"
#include "common/base/status.h"
#include "common/checkpoint/shards.h"

namespace xfer {

absl::Status EmulatedTrainer::Load() {
  const std::string& path = context_.shards[id_.rank];
  XFER_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  const std::vector<LocalTensor>& tensors = memory_->layout().tensors;
  return context_.pool->Run(tensors.size(), [&](size_t i) -> absl::Status {
    XFER_ASSIGN_OR_RETURN(const TensorView view, file->Find(tensors[i].name));
    const absl::Span<std::byte> memory = memory_->tensor(i);
    if (view.data.size() != memory.size() || view.dtype != tensors[i].dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", tensors[i].name, " has ", view.data.size(), " bytes of ",
                       Name(view.dtype), " where ", id_.ToString(), " holds ", memory.size(),
                       " of ", Name(tensors[i].dtype), ": prepare the model again"));
    }
    memcpy(memory.data(), view.data.data(), memory.size());
    return absl::OkStatus();
  });
}

RankOptions EmulatedTrainer::Options() const {
  RankOptions options;
  options.world = context_.spec.train.world;
  options.device = id_.rank % context_.spec.gpus_per_node;
  options.ready_version = version();
  options.hooks = {Hook::kHold, Hook::kRelease};
  return options;
}

int64_t EmulatedTrainer::version() const {
  absl::MutexLock lock(&mu_);
  return version_;
}

absl::Status EmulatedTrainer::OnHook(const HookCall& call) {
  if (call.hook == Hook::kHold) return Hold(call);
  if (call.hook == Hook::kRelease) Release(call);
  return absl::OkStatus();
}

absl::Status EmulatedTrainer::Hold(const HookCall& call) {
  absl::MutexLock lock(&mu_);
  const auto rests = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !stepping_; };
  if (!mu_.AwaitWithDeadline(absl::Condition(&rests), call.deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat(id_.ToString(), " is still in its training step"));
  }
  if (call.version != version_) {
    return absl::FailedPreconditionError(absl::StrCat(id_.ToString(), " holds version ", version_,
                                                      ", but version ", call.version,
                                                      " is to be synced"));
  }
  ++holds_;
  return absl::OkStatus();
}

void EmulatedTrainer::Release(const HookCall& call) {
  int64_t from = 0;
  {
    absl::MutexLock lock(&mu_);
    if (holds_ > 0) --holds_;
    const bool step =
        call.outcome.ok() && call.version == version_ && version_ < context_.last_version;
    if (!step || holds_ > 0 || stepping_) return;
    stepping_ = true;
    from = version_;
  }
  context_.pool->Start(
      memory_->layout().tensors.size(), [this, from](size_t i) { return StepTensor(i, from); },
      [this, from](const absl::Status& status) { StepDone(from + 1, status); });
}

absl::Status EmulatedTrainer::StepTensor(size_t i, int64_t from) const {
  const LocalTensor& local = memory_->layout().tensors[i];
  const absl::Span<std::byte> memory = memory_->tensor(i);
  const absl::Status stepped = StepVersion(local, context_.table, memory, from, from + 1);
  // A type that is narrower than the checkpoint's has lost what the step needs; start from the
  // checkpoint.
  if (absl::IsUnimplemented(stepped)) {
    return FillFromCheckpoint(local, context_.table, *context_.checkpoint, memory, from + 1);
  }
  return stepped;
}

void EmulatedTrainer::StepDone(int64_t version, const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    stepping_ = false;
    if (status.ok()) version_ = version;
  }
  if (absl::IsCancelled(status)) return;
  if (!status.ok()) {
    context_.on_lost(
        Annotate(status, absl::StrCat(id_.ToString(), " could not step to version ", version)));
    return;
  }
  Report([version](RegisteredRank& rank) { return rank.ReportReady(version); });
}

}  // namespace xfer
