// One emulated rank: memory, a registration, and what a training or rollout process does with both.
#ifndef XFER_CLIENT_EMULATOR_EMULATED_RANK_H_
#define XFER_CLIENT_EMULATOR_EMULATED_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "client/emulator/work_pool.h"
#include "client/rank_client.h"
#include "common/checkpoint/safetensors.h"
#include "common/layout/layout.h"
#include "common/model/model.h"

namespace xfer {

// What all ranks of a process share; read-only after start.
struct EmulatorContext {
  std::string job;
  ModelSpec spec;
  TensorTable table;
  std::vector<std::string> shards;  // files of the training ranks, by rank
  std::unique_ptr<Checkpoint> checkpoint;
  int64_t last_version = 1;  // trainers step no further
  bool check = true;         // rollout ranks check what they got
  uint64_t seed = 0;         // of the noise that rollout memory starts with
  WorkPool* pool = nullptr;
  // Told when a rank has lost its agent or cannot go on.
  std::function<void(const absl::Status&)> on_lost;
};

// A rank's tensors, one behind the other in one shared region.
class RankMemory {
 public:
  static absl::StatusOr<std::unique_ptr<RankMemory>> Create(const RankId& id, RankLayout layout);

  const RankLayout& layout() const { return layout_; }
  const std::vector<TensorPlacement>& placements() const { return placements_; }
  absl::Span<std::byte> tensor(size_t i) const { return tensors_[i]; }
  absl::Span<std::byte> whole() const { return memory_.bytes(); }
  RegionSource region() const { return {memory_.fd(), 0, memory_.bytes().size()}; }

 private:
  RankMemory(RankLayout layout, SharedMemory memory)
      : layout_(std::move(layout)), memory_(std::move(memory)) {}
  RankLayout layout_;
  SharedMemory memory_;
  std::vector<TensorPlacement> placements_;
  std::vector<absl::Span<std::byte>> tensors_;
};

// Thread-safe where not said otherwise. Order of life: Load, Register, ..., Leave, Dump.
class EmulatedRank {
 public:
  // Makes the right kind for `id`. InvalidArgument where the model has no such rank. `context` is
  // borrowed and outlives the rank.
  static absl::StatusOr<std::unique_ptr<EmulatedRank>> Create(const EmulatorContext& context,
                                                              const RankId& id);
  virtual ~EmulatedRank() = default;

  const RankId& id() const { return id_; }
  uint64_t bytes() const { return memory_->whole().size(); }

  // Gives the memory its first content.
  virtual absl::Status Load() = 0;
  absl::Status Register(RankClient& client, absl::Duration deadline);
  // Ends the registration; no hook runs or starts afterwards, but work of the pool may. Not to be
  // called while Register() runs.
  void Leave();
  // Writes train/rank-00000.safetensors or rollout/engine-0000-rank-0000.safetensors under
  // `directory`.
  absl::Status Dump(const std::string& directory) const;

 protected:
  EmulatedRank(const EmulatorContext& context, const RankId& id, std::unique_ptr<RankMemory> memory)
      : context_(context), id_(id), memory_(std::move(memory)) {}

  virtual RankOptions Options() const = 0;
  virtual absl::Status OnHook(const HookCall& call) = 0;
  virtual int64_t version() const = 0;
  // Tells the agent something; waits for a Register() that is running, and does nothing where there
  // is no registration (any more). A failure is logged: it means that the agent is gone, which
  // on_lost tells.
  void Report(absl::FunctionRef<absl::Status(RegisteredRank&)> tell);

  const EmulatorContext& context_;
  const RankId id_;
  const std::unique_ptr<RankMemory> memory_;

 private:
  absl::Notification registered_;
  absl::Mutex registration_mu_;
  std::unique_ptr<RegisteredRank> registration_ ABSL_GUARDED_BY(registration_mu_);
};

// Holds one rank's shard, and steps it from version to version as a training step would.
class EmulatedTrainer final : public EmulatedRank {
 public:
  EmulatedTrainer(const EmulatorContext& context, const RankId& id,
                  std::unique_ptr<RankMemory> memory)
      : EmulatedRank(context, id, std::move(memory)) {}
  // From the shard's file, by name; InvalidArgument names a tensor that is missing or of another
  // size.
  absl::Status Load() override;

 private:
  RankOptions Options() const override;
  absl::Status OnHook(const HookCall& call) override;
  int64_t version() const override;
  absl::Status Hold(const HookCall& call);
  void Release(const HookCall& call);
  absl::Status StepTensor(size_t i, int64_t from) const;
  void StepDone(int64_t version, const absl::Status& status);

  mutable absl::Mutex mu_;
  int64_t version_ ABSL_GUARDED_BY(mu_) = 1;
  bool stepping_ ABSL_GUARDED_BY(mu_) = false;
  int holds_ ABSL_GUARDED_BY(mu_) = 0;  // syncs that read the weights
};

// Holds one engine rank's weights: noise at first, and after every sync what the checkpoint says.
class EmulatedRollout final : public EmulatedRank {
 public:
  EmulatedRollout(const EmulatorContext& context, const RankId& id,
                  std::unique_ptr<RankMemory> memory)
      : EmulatedRank(context, id, std::move(memory)) {}
  absl::Status Load() override;

 private:
  RankOptions Options() const override;
  absl::Status OnHook(const HookCall& call) override;
  int64_t version() const override;
  absl::Status Pause(const HookCall& call);
  void Resume(const HookCall& call);

  mutable absl::Mutex mu_;
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;  // last one that came whole; 0: none
  bool checking_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace xfer

#endif  // XFER_CLIENT_EMULATOR_EMULATED_RANK_H_
