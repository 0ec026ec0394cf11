#include "client/emulator/emulator.h"

#include <malloc.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/prepare.h"
#include "spdlog/spdlog.h"

namespace xfer {
namespace {

constexpr int kMaxThreads = 4;

int Threads(int wanted) {
  if (wanted > 0) return wanted;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Emulator>> Emulator::Start(const EmulatorOptions& options) {
  XFER_ASSIGN_OR_RETURN(Prepared prepared, OpenPrepared(options.prepared));
  std::unique_ptr<Emulator> emulator(new Emulator());
  emulator->pool_ = std::make_unique<WorkPool>(Threads(options.threads));
  EmulatorContext& context = emulator->context_;
  context.job = options.job;
  context.spec = std::move(prepared.spec);
  XFER_ASSIGN_OR_RETURN(context.table, BuildTensorTable(context.spec.config));
  context.shards = std::move(prepared.shards);
  XFER_ASSIGN_OR_RETURN(context.checkpoint, Checkpoint::Open(prepared.hf_dir));
  context.last_version = options.last_version;
  context.check = options.check;
  context.seed = options.seed;
  context.pool = emulator->pool_.get();
  context.on_lost = options.on_lost;

  XFER_ASSIGN_OR_RETURN(emulator->client_,
                        RankClient::Connect(options.agent_socket, options.register_timeout));
  for (const RankId& id : options.ranks) {
    XFER_ASSIGN_OR_RETURN(std::unique_ptr<EmulatedRank> rank, EmulatedRank::Create(context, id));
    XFER_RETURN_IF_ERROR(rank->Load());
    spdlog::info("{}: {} bytes loaded", id.ToString(), rank->bytes());
    emulator->ranks_.push_back(std::move(rank));
    XFER_RETURN_IF_ERROR(
        emulator->ranks_.back()->Register(*emulator->client_, options.register_timeout));
  }
  // Reading the checkpoint's headers took far more memory than what is kept of them; with many
  // processes on a machine it is missed elsewhere.
  malloc_trim(0);
  return emulator;
}

Emulator::~Emulator() {
  if (pool_ != nullptr) pool_->Cancel();
  Leave();
}

void Emulator::Leave() {
  for (const auto& rank : ranks_) rank->Leave();
  pool_.reset();  // no hook is left that could start work; what was begun still reads and writes
                  // the ranks
}

absl::Status Emulator::Finish(const std::string& dump_dir) {
  Leave();
  if (dump_dir.empty()) return absl::OkStatus();
  for (const auto& rank : ranks_) XFER_RETURN_IF_ERROR(rank->Dump(dump_dir));
  return absl::OkStatus();
}

}  // namespace xfer
