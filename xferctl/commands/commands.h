// The subcommands; each function adds one (or one group) to the program. One file each.
#ifndef XFER_XFERCTL_COMMANDS_COMMANDS_H_
#define XFER_XFERCTL_COMMANDS_COMMANDS_H_

#include "xferctl/context.h"

namespace CLI {
class App;
}  // namespace CLI

namespace xfer {

void AddListCommand(CLI::App& app, Context& context);
void AddModelsCommand(CLI::App& app, Context& context);
void AddPrepareCommand(CLI::App& app, Context& context);
void AddRunCommand(CLI::App& app, Context& context);
void AddSyncCommand(CLI::App& app, Context& context);
void AddNodesCommand(CLI::App& app, Context& context);
void AddRanksCommand(CLI::App& app, Context& context);
void AddEnginesCommand(CLI::App& app, Context& context);
void AddJobsCommand(CLI::App& app, Context& context);
void AddSyncsCommand(CLI::App& app, Context& context);
void AddCancelCommand(CLI::App& app, Context& context);
void AddTimingsCommand(CLI::App& app, Context& context);
void AddPlanCommand(CLI::App& app, Context& context);
void AddDoctorCommand(CLI::App& app, Context& context);
void AddVersionCommand(CLI::App& app, Context& context);

}  // namespace xfer

#endif  // XFER_XFERCTL_COMMANDS_COMMANDS_H_
