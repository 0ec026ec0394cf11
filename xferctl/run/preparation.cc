#include "xferctl/run/preparation.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/coordinator_client.h"
#include "client/host_memory.h"
#include "common/base/status.h"
#include "common/checkpoint/prepare.h"
#include "xferctl/progress.h"

namespace xfer {
namespace {

// Private memory of the programs themselves, beside the ranks' shared memory: an agent and an
// emulator process a node, and the coordinator.
constexpr uint64_t kBytesPerNode = 64'000'000;
// What both of a node's programs know of each tensor of the model.
constexpr uint64_t kBytesPerTensor = 1'000;
constexpr uint64_t kCoordinatorBytes = 128'000'000;
// How often another process's preparation is looked at; its lock may be on another machine.
constexpr absl::Duration kAskAgain = absl::Milliseconds(200);

// Whether the directory may be used as it is. That it may not is no error: it is then prepared.
bool IsPrepared(const RunOptions& options) {
  const absl::StatusOr<Prepared> prepared = OpenPrepared(options.prepared_dir);
  if (!prepared.ok() || ToJson(prepared->spec) != ToJson(options.spec)) return false;
  return !prepared->synthesized || prepared->seed == options.seed;
}

// Machines that share a disk start at the same time: one prepares, and the others wait for it.
absl::StatusOr<PrepareResult> PrepareOrWait(const Context& context, const RunOptions& options) {
  PrepareOptions prepare;
  prepare.spec = options.spec;
  prepare.synthesize = true;
  prepare.tiny = options.tiny;
  prepare.out_dir = options.prepared_dir;
  prepare.seed = options.seed;
  ProgressLine line(context.stderr_is_terminal);
  prepare.progress = [&line](uint64_t done, uint64_t total, absl::string_view file) {
    line.Show(ProgressBar(done, total, file));
  };
  const absl::Time deadline = absl::Now() + options.deadline;
  const CallCanceller nobody;
  while (true) {
    absl::StatusOr<PrepareResult> result = Prepare(prepare);
    if (!absl::IsAborted(result.status()) || absl::Now() >= deadline) return result;
    line.Show("another process is preparing it; waiting");
    nobody.WaitUntil(std::min(deadline, absl::Now() + kAskAgain));
  }
}

absl::Status CheckDisk(const RunOptions& options, uint64_t rank_bytes) {
  std::error_code error;
  std::filesystem::create_directories(options.dump_dir, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("--dump-dir: cannot make ", options.dump_dir, ": ", error.message()));
  }
  const std::filesystem::space_info space = std::filesystem::space(options.dump_dir, error);
  if (error || space.available >= rank_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--dump-dir needs ", HumanBytes(rank_bytes), " (", rank_bytes,
                   " bytes) for what the ranks hold, but ", options.dump_dir, " has ",
                   HumanBytes(space.available), " (", space.available, " bytes) free"));
}

}  // namespace

absl::Status PrepareForRun(const Context& context, const RunOptions& options) {
  if (IsPrepared(options)) return absl::OkStatus();
  context.Say(absl::StrCat("preparing ", options.name, " in ", options.prepared_dir,
                           " with made-up weights ..."));
  const absl::StatusOr<PrepareResult> result = PrepareOrWait(context, options);
  if (!result.ok()) return Annotate(result.status(), absl::StrCat("preparing ", options.name));
  context.Say(result->already_done
                  ? std::string("prepared by another process")
                  : absl::StrCat("prepared: ", HumanBytes(result->bytes_written), " written"));
  return absl::OkStatus();
}

absl::Status CheckMemory(const RunOptions& options, uint64_t rank_bytes, size_t nodes,
                         uint64_t available) {
  const uint64_t needed = rank_bytes + nodes * kBytesPerNode + kCoordinatorBytes;
  if (needed <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      options.name, " needs ", HumanBytes(needed), " (", needed,
      " bytes) of memory on this machine, but ", HumanBytes(available), " (", available,
      " bytes) are available: keep fewer layers (--layers N, of ",
      options.spec.config.num_hidden_layers, ")", options.tiny ? "" : ", shrink it (--tiny)",
      " or spread it over machines (--node-rank)"));
}

absl::Status CheckRoom(const RunOptions& options, const std::vector<NodeRanks>& here) {
  XFER_ASSIGN_OR_RETURN(const uint64_t rank_bytes, RankBytes(options.spec, here));
  XFER_ASSIGN_OR_RETURN(const TensorTable table, BuildTensorTable(options.spec.config));
  const uint64_t known_bytes = here.size() * table.size() * kBytesPerTensor;
  XFER_RETURN_IF_ERROR(
      CheckMemory(options, rank_bytes + known_bytes, here.size(), AvailableMemoryBytes()));
  return options.dump_dir.empty() ? absl::OkStatus() : CheckDisk(options, rank_bytes);
}

}  // namespace xfer
