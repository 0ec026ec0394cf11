// xferctl run MODEL: a whole job on this machine, or this machine's part of one.
#include <memory>

#include "CLI/CLI.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/run/run.h"

namespace xfer {

void AddRunCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand(
      "run",
      "Start coordinator, agents and emulated ranks, sync some times, check, and stop everything");
  AddRunFlags(*command, *flags);
  SetAction(*command, context, flags, &Run);
}

}  // namespace xfer
