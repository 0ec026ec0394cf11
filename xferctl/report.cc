#include "xferctl/report.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "xferctl/progress.h"
#include "xferctl/text.h"

namespace xfer {
namespace {

// The rollout rank whose last byte came last; null where none is known.
const v1::RankTiming* SlowestRank(const v1::Sync& sync) {
  const v1::RankTiming* slowest = nullptr;
  for (const v1::RankTiming& rank : sync.ranks()) {
    if (rank.id().role() != v1::ROLE_ROLLOUT) continue;
    if (slowest == nullptr || rank.end_ns() > slowest->end_ns()) slowest = &rank;
  }
  return slowest;
}

std::string FailureLine(const v1::EngineResult& engine, const v1::TransferFailure& failure) {
  std::string line = absl::StrCat("engine ", engine.engine(), ": ", Text(failure.destination()),
                                  " on ", failure.destination_node());
  if (!failure.source_node().empty()) {
    absl::StrAppend(&line, " from ", Text(failure.source()), " on ", failure.source_node());
  }
  if (!failure.tensor().empty()) absl::StrAppend(&line, ", tensor ", failure.tensor());
  return absl::StrCat(line, ": ", failure.outcome().message());
}

}  // namespace

Table PhaseTable(const v1::Sync& sync) {
  Table table({{"PHASE"},
               {"MS", Align::kRight},
               {"BYTES", Align::kRight},
               {"GB/S", Align::kRight},
               {"SLOWEST RANK"}});
  const uint64_t bytes =
      sync.state() == v1::SYNC_STATE_DONE ? sync.bytes_total() : sync.bytes_done();
  for (const v1::PhaseTiming& phase : sync.phases()) {
    std::string name = Text(phase.phase());
    if (phase.phase() == v1::PHASE_PLAN && sync.plan_cached()) name += " (cached)";
    if (phase.phase() != v1::PHASE_TRANSFER) {
      table.AddRow({name, Millis(phase.duration_ns())});
      continue;
    }
    std::string slowest;
    if (const v1::RankTiming* rank = SlowestRank(sync); rank != nullptr) {
      slowest = absl::StrCat(Text(rank->id()), " on ", rank->node(), " (",
                             Millis(rank->end_ns() - rank->start_ns()), " ms)");
    }
    table.AddRow({name, Millis(phase.duration_ns()), HumanBytes(bytes),
                  GigabytesPerSecond(bytes, phase.duration_ns()), slowest});
  }
  table.AddRow({"total", Millis(sync.total_ns()), HumanBytes(bytes),
                GigabytesPerSecond(bytes, sync.total_ns())});
  return table;
}

std::vector<std::string> FailureLines(const v1::Sync& sync) {
  std::vector<std::string> lines;
  for (const v1::EngineResult& engine : sync.engines()) {
    if (engine.outcome().code() == 0) continue;
    if (engine.failures().empty()) {
      lines.push_back(absl::StrCat("engine ", engine.engine(), ": ", engine.outcome().message()));
      continue;
    }
    for (const v1::TransferFailure& failure : engine.failures())
      lines.push_back(FailureLine(engine, failure));
    const int more = engine.failure_count() - engine.failures_size();
    if (more > 0)
      lines.push_back(absl::StrCat("engine ", engine.engine(), ": and ", more, " more transfers"));
  }
  return lines;
}

absl::Status SyncStatus(const v1::Sync& sync) {
  if (sync.state() == v1::SYNC_STATE_DONE) return absl::OkStatus();
  absl::Status cause = FromOutcome(sync.outcome());
  if (cause.ok()) cause = absl::InternalError("no cause was given");
  return absl::Status(cause.code(),
                      absl::StrCat("sync ", sync.id(), " of version ", sync.version(), " ",
                                   Text(sync.state()).text, ": ", cause.message()));
}

std::string SyncProgress(const v1::Sync& sync) {
  return ProgressBar(sync.bytes_done(), sync.bytes_total(),
                     absl::StrCat("sync ", sync.id(), " ", Text(sync.phase())));
}

}  // namespace xfer
