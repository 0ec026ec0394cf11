// xfer-rank: emulates training and rollout ranks, any number in one process.
#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/emulator/emulator.h"
#include "client/emulator/end_event.h"
#include "client/rank_lists.h"
#include "common/base/logging.h"
#include "common/base/process.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer {
namespace {

struct Flags {
  EmulatorOptions emulator;
  std::string trainers;
  std::string rollout;
  std::string check = "full";
  std::string dump_dir;
  int ready_fd = -1;
  double register_timeout_s = 120;
  LogOptions log;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--agent-socket", flags.emulator.agent_socket, "Unix socket of this node's agent")
      ->required();
  app.add_option("--job", flags.emulator.job, "Job that the ranks belong to")->required();
  app.add_option("--prepared", flags.emulator.prepared, "Directory that `xferctl prepare` made")
      ->required();
  app.add_option("--trainers", flags.trainers, "Training ranks, e.g. 0-3,7");
  app.add_option("--rollout", flags.rollout, "Rollout ranks as ENGINE:RANKS, e.g. 0:0-1,1:0");
  app.add_option("--last-version", flags.emulator.last_version,
                 "Version at which the trainers stop stepping")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->capture_default_str();
  app.add_option("--check", flags.check, "What rollout ranks compare after a sync")
      ->check(CLI::IsMember({"full", "none"}))
      ->capture_default_str();
  app.add_option("--dump-dir", flags.dump_dir, "Where to write what every rank holds, at SIGTERM");
  app.add_option("--seed", flags.emulator.seed, "Seed of the noise that rollout memory starts with")
      ->capture_default_str();
  app.add_option("--threads", flags.emulator.threads,
                 "Threads for loading and checking; 0: one a core, at most 4")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--register-timeout", flags.register_timeout_s,
                 "Seconds that a registration may take")
      ->check(CLI::Range(0.001, 86'400.0))
      ->capture_default_str();
  app.add_option("--ready-fd", flags.ready_fd,
                 "Where to write \"ready\" once all ranks are registered");
  app.add_option("--log-dir", flags.log.directory, "Directory of a log file; none by default");
  app.add_option("--log-level", flags.log.level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
}

absl::StatusOr<std::vector<RankId>> Ranks(const Flags& flags) {
  auto trainers = ParseNumberList(flags.trainers);
  if (!trainers.ok()) return Annotate(trainers.status(), "--trainers");
  auto ranks = ParseRolloutList(flags.rollout);
  if (!ranks.ok()) return Annotate(ranks.status(), "--rollout");
  for (int32_t rank : *trainers) ranks->push_back({Role::kTrainer, 0, rank});
  if (ranks->empty())
    return absl::InvalidArgumentError("no rank to emulate: give --trainers, --rollout or both");
  return ranks;
}

absl::Status MakeDumpDirectories(const std::string& dump_dir) {
  for (const char* part : {"/train", "/rollout"}) {
    std::error_code error;
    std::filesystem::create_directories(dump_dir + part, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat("--dump-dir: cannot make ", dump_dir, part, ": ", error.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Run(Flags& flags) {
  flags.log.process = absl::StrCat("rank-", flags.emulator.ranks.front().ToString());
  for (char& c : flags.log.process) {
    if (c == ' ') c = '-';
  }
  XFER_RETURN_IF_ERROR(InitLogging(flags.log));
  if (!flags.dump_dir.empty()) XFER_RETURN_IF_ERROR(MakeDumpDirectories(flags.dump_dir));
  flags.emulator.check = flags.check == "full";
  flags.emulator.register_timeout = absl::Seconds(flags.register_timeout_s);
  EndEvent& end = EndEvent::Get();
  flags.emulator.on_lost = [&end](const absl::Status& status) { end.Fail(status); };

  XFER_ASSIGN_OR_RETURN(std::unique_ptr<Emulator> emulator, Emulator::Start(flags.emulator));
  // Until here a signal ends the process at once: there is nothing to finish.
  end.TakeSignals();
  TellReady(flags.ready_fd, "ready");
  spdlog::info("{} ranks ready", flags.emulator.ranks.size());
  XFER_ASSIGN_OR_RETURN(const int signal_number, end.Wait());
  spdlog::info("ending on signal {}", signal_number);
  // SIGINT is for those who do not want to wait for anything.
  if (signal_number != SIGTERM) return absl::OkStatus();
  return emulator->Finish(flags.dump_dir);
}

int Main(int argc, char** argv) {
  InitProcess();
  CLI::App app(
      "Emulates ranks of a job: registers their memory with this node's agent, steps the trainers' "
      "weights, and checks what the engines get.",
      "xfer-rank");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    puts(app.help().c_str());
    return 0;
  } catch (const CLI::ParseError& error) {
    fprintf(stderr, "xfer-rank: %s\n", error.what());
    return 2;
  }
  absl::StatusOr<std::vector<RankId>> ranks = Ranks(flags);
  if (!ranks.ok()) {
    fprintf(stderr, "xfer-rank: %s\n", std::string(ranks.status().message()).c_str());
    return 2;
  }
  flags.emulator.ranks = *std::move(ranks);
  const absl::Status status = Run(flags);
  if (status.ok()) return 0;
  fprintf(stderr, "xfer-rank: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) { return xfer::Main(argc, argv); }
