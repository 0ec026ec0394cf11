#include "xferctl/run/steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/progress.h"
#include "xferctl/proto_json.h"
#include "xferctl/report.h"
#include "xferctl/text.h"

namespace xfer {
namespace {

// Beyond a sync's own deadline, for the coordinator to say how it ended.
constexpr absl::Duration kGrace = absl::Seconds(15);
constexpr size_t kNamedRanks = 8;

std::string JoinRanks(const std::vector<std::string>& names, size_t count) {
  const size_t shown = std::min(names.size(), kNamedRanks);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  if (count > shown) absl::StrAppend(&text, " and ", count - shown, " more");
  return text;
}

std::string MissingRanks(const v1::JobState& state) {
  std::vector<std::string> names;
  for (const v1::RankId& id : state.missing()) names.push_back(Text(id));
  return JoinRanks(names, state.missing_count());
}

// Ranks that keep the run from going on after `version`, for a message.
std::string Laggards(const v1::JobState& state, int64_t version, bool judge, bool step) {
  std::vector<std::string> names;
  for (const v1::RankInfo& rank : state.ranks()) {
    if (rank.id().role() == v1::ROLE_ROLLOUT) {
      if (judge && rank.owner_report().version() < version)
        names.push_back(Text(rank.id()) + " (no verdict)");
    } else if (step && rank.ready_version() <= version) {
      names.push_back(absl::StrCat(Text(rank.id()), " (at version ", rank.ready_version(), ")"));
    }
  }
  return JoinRanks(names, names.size());
}

// A rank that is lost in the middle of a run never comes back by itself.
absl::Status CheckComplete(const v1::JobState& state) {
  if (state.missing_count() == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("ranks were lost during the run: ", MissingRanks(state)));
}

absl::StatusOr<v1::Sync> SyncVersion(const Context& context, CoordinatorClient& client,
                                     const RunOptions& options, int64_t version) {
  v1::TriggerSyncRequest request;
  request.set_job(options.name);
  request.set_version(version);
  request.set_deadline_ms(absl::ToInt64Milliseconds(options.deadline));
  Apply(options.sync, request);
  XFER_ASSIGN_OR_RETURN(const uint64_t id, client.TriggerSync(request));
  ProgressLine line(context.stderr_is_terminal);
  return client.WatchSync(id, absl::Now() + options.deadline + kGrace,
                          [&line](const v1::Sync& state) { line.Show(SyncProgress(state)); });
}

// Waits for the verdicts on `version`, and for the trainers to be at the next one unless it is the
// last.
absl::Status WaitForVersion(CoordinatorClient& client, const RunOptions& options, int64_t version) {
  const bool step = version < options.steps;
  if (!options.validate && !step) return absl::OkStatus();
  const ModelSpec& spec = options.spec;
  absl::Status verdict;
  v1::JobState last;
  const absl::Status watched =
      client.WatchJob(options.name, absl::Now() + options.deadline, [&](const v1::JobState& state) {
        last = state;
        verdict = CheckVerdicts(state, version);
        if (verdict.ok()) verdict = CheckComplete(state);
        if (!verdict.ok()) return false;
        return !((!options.validate || AllJudged(state, version, spec.rollout.world)) &&
                 (!step || AllReady(state, version + 1, spec.train.world)));
      });
  XFER_RETURN_IF_ERROR(verdict);
  if (!absl::IsDeadlineExceeded(watched)) return watched;
  return absl::DeadlineExceededError(absl::StrCat(
      "after ", absl::FormatDuration(options.deadline), " these ranks are not done with version ",
      version, ": ", Laggards(last, version, options.validate, step),
      options.node_rank.has_value()
          ? "; were --steps and --skip-validation the same on every machine?"
          : ""));
}

struct Series {
  std::string name;
  std::vector<int64_t> ns;  // sorted
};

// Phases in order, then "total"; over all syncs but the first.
std::vector<Series> SteadySeries(const std::vector<v1::Sync>& syncs) {
  std::vector<Series> all;
  for (size_t i = 1; i < syncs.size(); ++i) {
    const auto add = [&all](const std::string& name, int64_t ns) {
      auto found =
          std::find_if(all.begin(), all.end(), [&](const Series& s) { return s.name == name; });
      if (found == all.end()) found = all.insert(all.end(), {name, {}});
      found->ns.push_back(ns);
    };
    for (const v1::PhaseTiming& phase : syncs[i].phases())
      add(Text(phase.phase()), phase.duration_ns());
    add("total", syncs[i].total_ns());
  }
  for (Series& series : all) std::sort(series.ns.begin(), series.ns.end());
  return all;
}

// Of sorted numbers; the mean of the middle two where there is no single one.
int64_t Median(const std::vector<int64_t>& sorted) {
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace

absl::Status CheckVerdicts(const v1::JobState& state, int64_t version) {
  for (const v1::RankInfo& rank : state.ranks()) {
    const v1::OwnerReport& report = rank.owner_report();
    if (report.version() != version || report.outcome().code() == 0) continue;
    return absl::DataLossError(absl::StrCat(Text(rank.id()), " on ", rank.node(),
                                            " does not hold the checkpoint's weights at version ",
                                            version, ": ", report.outcome().message()));
  }
  return absl::OkStatus();
}

bool AllJudged(const v1::JobState& state, int64_t version, int32_t ranks) {
  const auto judged =
      std::count_if(state.ranks().begin(), state.ranks().end(), [&](const v1::RankInfo& rank) {
        return rank.id().role() == v1::ROLE_ROLLOUT && rank.owner_report().version() >= version;
      });
  return judged == ranks;
}

bool AllReady(const v1::JobState& state, int64_t version, int32_t ranks) {
  const auto ready =
      std::count_if(state.ranks().begin(), state.ranks().end(), [&](const v1::RankInfo& rank) {
        return rank.id().role() == v1::ROLE_TRAINER && rank.ready_version() >= version;
      });
  return ready == ranks;
}

absl::Status WaitForRanks(const Context& context, CoordinatorClient& client,
                          const RunOptions& options) {
  ProgressLine line(context.stderr_is_terminal);
  const int32_t expected = options.spec.train.world + options.spec.rollout.world;
  v1::JobState last;
  const absl::Status watched =
      client.WatchJob(options.name, absl::Now() + options.deadline, [&](const v1::JobState& state) {
        last = state;
        line.Show(absl::StrCat("waiting for ranks: ", state.ranks_size(), " of ", expected,
                               " registered"));
        return !(state.missing_count() == 0 && AllReady(state, 1, options.spec.train.world));
      });
  if (!absl::IsDeadlineExceeded(watched)) return watched;
  return absl::DeadlineExceededError(
      absl::StrCat("after ", absl::FormatDuration(options.deadline), " ", last.missing_count(),
                   " of ", expected, " ranks are not registered: ", MissingRanks(last)));
}

absl::Status RunSteps(const Context& context, CoordinatorClient& client, const RunOptions& options,
                      std::vector<v1::Sync>& syncs) {
  for (int64_t version = 1; version <= options.steps; ++version) {
    XFER_ASSIGN_OR_RETURN(const v1::Sync sync, SyncVersion(context, client, options, version));
    syncs.push_back(sync);
    if (!context.json()) {
      context.Say(absl::StrCat(
          "step ", version, " of ", options.steps, ": sync ", sync.id(), " ",
          Paint(Text(sync.state()).text, Text(sync.state()).colour, context.colours())));
      context.Print(PhaseTable(sync));
    }
    for (const std::string& failure : FailureLines(sync)) context.Say(failure);
    XFER_RETURN_IF_ERROR(SyncStatus(sync));
    XFER_RETURN_IF_ERROR(WaitForVersion(client, options, version));
    if (options.validate) {
      context.Say(absl::StrCat("        all ", options.spec.rollout.world,
                               " rollout ranks are equal to the checkpoint at version ", version));
    }
  }
  return absl::OkStatus();
}

Table SummaryTable(const std::vector<v1::Sync>& syncs) {
  Table table({{"PHASE"},
               {"MIN MS", Align::kRight},
               {"MEDIAN MS", Align::kRight},
               {"MAX MS", Align::kRight},
               {"MEDIAN GB/S", Align::kRight}});
  for (const Series& series : SteadySeries(syncs)) {
    const bool moves = series.name == "transfer" || series.name == "total";
    table.AddRow({series.name, Millis(series.ns.front()), Millis(Median(series.ns)),
                  Millis(series.ns.back()),
                  moves ? GigabytesPerSecond(syncs.back().bytes_total(), Median(series.ns))
                        : std::string()});
  }
  return table;
}

nlohmann::json RunDocument(const RunOptions& options, const std::vector<v1::Sync>& syncs,
                           const absl::Status& outcome) {
  nlohmann::json document = {{"model", options.spec.name},
                             {"name", options.name},
                             {"prepared_dir", options.prepared_dir},
                             {"ranks", options.spec.train.world + options.spec.rollout.world},
                             {"validated", options.validate},
                             {"ok", outcome.ok()},
                             {"error", outcome.message()},
                             {"steps", nlohmann::json::array()},
                             {"steady", nlohmann::json::object()}};
  for (const v1::Sync& sync : syncs) document["steps"].push_back(ToJson(sync));
  for (const Series& series : SteadySeries(syncs)) {
    document["steady"][series.name] = {{"min_ns", series.ns.front()},
                                       {"median_ns", Median(series.ns)},
                                       {"max_ns", series.ns.back()}};
  }
  return document;
}

}  // namespace xfer
