#include "client/emulator/emulated_rank.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/checkpoint/dump.h"
#include "common/layout/placement.h"
#include "spdlog/spdlog.h"

namespace xfer {

absl::StatusOr<std::unique_ptr<RankMemory>> RankMemory::Create(const RankId& id,
                                                               RankLayout layout) {
  XFER_ASSIGN_OR_RETURN(Placement placement, PlaceContiguously(layout));
  XFER_ASSIGN_OR_RETURN(
      SharedMemory shared,
      SharedMemory::Create(absl::StrCat("xfer ", id.ToString()), placement.region_bytes.front()));
  std::unique_ptr<RankMemory> memory(new RankMemory(std::move(layout), std::move(shared)));
  memory->placements_ = std::move(placement.tensors);
  for (const TensorPlacement& tensor : memory->placements_) {
    const uint64_t bytes = NumElements(tensor.shape) * SizeOf(tensor.dtype);
    memory->tensors_.push_back(memory->memory_.bytes().subspan(tensor.offset, bytes));
  }
  return memory;
}

absl::StatusOr<std::unique_ptr<EmulatedRank>> EmulatedRank::Create(const EmulatorContext& context,
                                                                   const RankId& id) {
  const RolloutParallelism& rollout = context.spec.rollout;
  if (id.role == Role::kRollout && (id.engine < 0 || id.engine >= rollout.engines())) {
    return absl::InvalidArgumentError(absl::StrCat(id.ToString(),
                                                   " does not exist: ", context.spec.name, " has ",
                                                   rollout.engines(), " engines"));
  }
  auto layout = id.role == Role::kTrainer ? MegatronLayout(context.spec, context.table, id.rank)
                                          : SglangLayout(context.spec, context.table, id.rank);
  if (!layout.ok()) return Annotate(layout.status(), id.ToString());
  XFER_ASSIGN_OR_RETURN(std::unique_ptr<RankMemory> memory,
                        RankMemory::Create(id, *std::move(layout)));
  if (id.role == Role::kTrainer)
    return std::make_unique<EmulatedTrainer>(context, id, std::move(memory));
  return std::make_unique<EmulatedRollout>(context, id, std::move(memory));
}

absl::Status EmulatedRank::Register(RankClient& client, absl::Duration deadline) {
  RankOptions options = Options();
  options.job = context_.job;
  options.id = id_;
  options.regions = {memory_->region()};
  options.tensors = memory_->placements();
  options.deadline = deadline;
  options.on_hook = [this](const HookCall& call) { return OnHook(call); };
  options.on_lost = [this](const absl::Status& status) {
    context_.on_lost(Annotate(status, absl::StrCat(id_.ToString(), " lost its agent")));
  };
  auto registration = client.Register(options);
  if (registration.ok()) {
    absl::MutexLock lock(&registration_mu_);
    registration_ = *std::move(registration);
  }
  registered_.Notify();
  return registration.status();
}

void EmulatedRank::Report(absl::FunctionRef<absl::Status(RegisteredRank&)> tell) {
  // A hook, and what follows from it, may come before Register() has returned.
  registered_.WaitForNotification();
  absl::MutexLock lock(&registration_mu_);
  if (registration_ == nullptr) return;
  const absl::Status told = tell(*registration_);
  if (!told.ok())
    spdlog::warn("{}: a report to the agent failed: {}", id_.ToString(), told.ToString());
}

void EmulatedRank::Leave() {
  std::unique_ptr<RegisteredRank> leaving;
  {
    absl::MutexLock lock(&registration_mu_);
    leaving = std::move(registration_);
  }
}

absl::Status EmulatedRank::Dump(const std::string& directory) const {
  const std::string path =
      id_.role == Role::kTrainer
          ? absl::StrFormat("%s/train/rank-%05d.safetensors", directory, id_.rank)
          : absl::StrFormat("%s/rollout/engine-%04d-rank-%04d.safetensors", directory, id_.engine,
                            id_.rank);
  std::vector<absl::Span<const std::byte>> tensors;
  for (size_t i = 0; i < memory_->layout().tensors.size(); ++i)
    tensors.push_back(memory_->tensor(i));
  return DumpRank(path, memory_->layout(), tensors, {{"xfer_version", absl::StrCat(version())}});
}

}  // namespace xfer
