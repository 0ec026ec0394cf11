// xferctl: the operator's tool.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/logging.h"
#include "common/base/process.h"
#include "xferctl/commands/commands.h"
#include "xferctl/context.h"
#include "xferctl/exit.h"

namespace xfer {
namespace {

void AddGlobalOptions(CLI::App& app, Context& context) {
  app.add_option("--output,-o", context.output, "How results are printed")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.add_option("--coordinator", context.coordinator,
                 "HOST:PORT (else XFER_COORDINATOR, else 127.0.0.1:7300)");
  app.add_option("--log-dir", context.log_dir,
                 "Directory for log files (else XFER_LOG_DIR, else none)");
}

void AddCommands(CLI::App& app, Context& context) {
  AddListCommand(app, context);
  AddModelsCommand(app, context);
  AddPrepareCommand(app, context);
  AddRunCommand(app, context);
  AddSyncCommand(app, context);
  AddNodesCommand(app, context);
  AddRanksCommand(app, context);
  AddEnginesCommand(app, context);
  AddJobsCommand(app, context);
  AddSyncsCommand(app, context);
  AddCancelCommand(app, context);
  AddTimingsCommand(app, context);
  AddPlanCommand(app, context);
  AddDoctorCommand(app, context);
  AddVersionCommand(app, context);
}

// Logs of xferctl itself go to a file or nowhere: stderr is for the one line that says what went
// wrong.
absl::Status StartLogging(const Context& context) {
  LogOptions log;
  log.process = "xferctl";
  auto directory = StringSetting(context.log_dir, "XFER_LOG_DIR", "", context.env);
  if (!directory.ok()) return directory.status();
  log.directory = *directory;
  log.to_stderr = false;
  const absl::Status status = InitLogging(log);
  return InContext(status,
                   context.log_dir.has_value() ? "--log-dir" : "environment variable XFER_LOG_DIR");
}

int Main(int argc, char** argv) {
  InitProcess();
  Context context;
  context.stdout_is_terminal = isatty(STDOUT_FILENO) != 0;
  context.stderr_is_terminal = isatty(STDERR_FILENO) != 0;
  CLI::App app("Moves a model's weights from training ranks to rollout engines.", "xferctl");
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalOptions(app, context);
  AddCommands(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    // Where the command is misspelt, CLI11 says that there is none.
    const std::vector<std::string> unknown = app.remaining();
    if (app.get_subcommands().empty() && !unknown.empty()) {
      fprintf(
          stderr,
          "xferctl: there is no command or option \"%s\" (xferctl --help shows what there is)\n",
          unknown.front().c_str());
      return kExitUsage;
    }
    fprintf(stderr, "xferctl: %s (xferctl --help shows what there is)\n",
            OneLine(UsageError(error.what())).c_str());
    return kExitUsage;
  }
  absl::Status status = StartLogging(context);
  if (status.ok()) status = context.command();
  if (!status.ok()) fprintf(stderr, "xferctl: %s\n", OneLine(status).c_str());
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) { return xfer::Main(argc, argv); }
