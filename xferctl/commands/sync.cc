// xferctl sync: one sync of a job on a running coordinator.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/rank_lists.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/exit.h"
#include "xferctl/progress.h"
#include "xferctl/proto_json.h"
#include "xferctl/report.h"
#include "xferctl/signal_watch.h"
#include "xferctl/sync_options.h"
#include "xferctl/text.h"

namespace xfer {
namespace {

struct SyncFlags {
  SyncOptions sync;
  std::string engines;
  int64_t version = 0;
  double timeout_s = 0;
  bool no_wait = false;
};

// Beyond the sync's own deadline, for the coordinator to say how it ended.
constexpr absl::Duration kGrace = absl::Seconds(15);
constexpr absl::Duration kLongest = absl::Hours(24);

absl::StatusOr<v1::TriggerSyncRequest> Request(const SyncFlags& flags) {
  v1::TriggerSyncRequest request;
  auto engines = ParseNumberList(flags.engines);
  if (!engines.ok()) return InContext(AsUsageError(engines.status()), "--engines");
  for (int32_t engine : *engines) request.add_engines(engine);
  Apply(flags.sync, request);
  request.set_version(flags.version);
  request.set_deadline_ms(static_cast<int64_t>(flags.timeout_s * 1'000));
  return request;
}

// On the first signal asks for the sync's end (its last state then comes as ever), on the second
// goes.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(std::string address)
      : address_(std::move(address)), watch_([this](int) { OnSignal(); }) {}
  void set_sync(uint64_t id) { sync_id_.store(id); }

 private:
  void OnSignal() {
    const uint64_t id = sync_id_.load();
    if (id == 0 || signals_++ > 0) _exit(kExitFailed);
    fprintf(stderr, "xferctl: cancelling sync %llu (once more to leave it alone)\n",
            static_cast<unsigned long long>(id));
    auto client = CoordinatorClient::Connect(address_, absl::Seconds(3));
    const absl::Status status = client.ok() ? (*client)->CancelSync(id).status() : client.status();
    if (!status.ok()) fprintf(stderr, "xferctl: %s\n", OneLine(status).c_str());
  }

  const std::string address_;
  std::atomic<uint64_t> sync_id_{0};
  int signals_ = 0;    // used by the watch's thread only
  SignalWatch watch_;  // last: its thread uses the others
};

void PrintSync(const Context& context, const v1::Sync& sync) {
  if (context.json()) {
    context.Print(ToJson(sync));
    return;
  }
  context.Say(
      absl::StrCat("sync ", sync.id(), " of job ", sync.job(), ", version ", sync.version(), ": ",
                   Paint(Text(sync.state()).text, Text(sync.state()).colour, context.colours())));
  context.Print(PhaseTable(sync));
  for (const std::string& line : FailureLines(sync))
    context.Say(Paint(line, Colour::kBad, context.colours()));
}

absl::Status RunSync(Context& context, const SyncFlags& flags) {
  XFER_ASSIGN_OR_RETURN(v1::TriggerSyncRequest request, Request(flags));
  CancelOnSignal signals(context.CoordinatorAddress());
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(*request.mutable_job(), context.Job(*client));
  XFER_ASSIGN_OR_RETURN(const uint64_t id, client->TriggerSync(request));
  if (flags.no_wait) {
    if (context.json()) {
      context.Print(nlohmann::json{{"id", id}});
    } else {
      context.Say(absl::StrCat("sync ", id, " is running"));
    }
    return absl::OkStatus();
  }
  signals.set_sync(id);
  ProgressLine line(context.stderr_is_terminal);
  const absl::Duration longest =
      flags.timeout_s > 0 ? absl::Seconds(flags.timeout_s) + kGrace : kLongest;
  XFER_ASSIGN_OR_RETURN(const v1::Sync sync, client->WatchSync(id, absl::Now() + longest,
                                                               [&line](const v1::Sync& state) {
                                                                 line.Show(SyncProgress(state));
                                                               }));
  line.Clear();
  PrintSync(context, sync);
  return SyncStatus(sync);
}

}  // namespace

void AddSyncCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<SyncFlags>();
  CLI::App* command = app.add_subcommand("sync", "Move the trainers' weights to the engines now");
  AddJobOption(*command, context);
  command->add_option("--engines", flags->engines, "Engines, e.g. 0,2-3; by default all");
  AddSyncOptions(*command, flags->sync);
  command
      ->add_option("--version", flags->version,
                   "Weight version; by default the one at which all trainers are ready")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000'000}));
  command
      ->add_option("--timeout", flags->timeout_s,
                   "Seconds for the whole sync; by default the model's")
      ->check(CLI::Range(0.001, 86'400.0));
  command->add_flag("--no-wait", flags->no_wait, "Start it and return");
  SetAction(*command, context, flags, &RunSync);
}

}  // namespace xfer
