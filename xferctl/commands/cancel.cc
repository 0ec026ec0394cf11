// xferctl cancel SYNC: ends a running sync.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/proto_json.h"
#include "xferctl/text.h"

namespace xfer {
namespace {

struct CancelOptions {
  uint64_t sync = 0;
};

absl::Status RunCancel(Context& context, const CancelOptions& options) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(const v1::Sync sync, client->CancelSync(options.sync));
  if (context.json()) {
    context.Print(ToJson(sync));
  } else if (sync.state() == v1::SYNC_STATE_RUNNING) {
    context.Say(absl::StrCat("sync ", sync.id(), " of job ", sync.job(), " is asked to end"));
  } else {
    context.Say(absl::StrCat("sync ", sync.id(), " of job ", sync.job(),
                             " has ended: ", Text(sync.state()).text));
  }
  return absl::OkStatus();
}

}  // namespace

void AddCancelCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<CancelOptions>();
  CLI::App* command = app.add_subcommand("cancel", "End a running sync");
  command->add_option("sync", options->sync, "Number of the sync")
      ->required()
      ->check(CLI::PositiveNumber);
  SetAction(*command, context, options, &RunCancel);
}

}  // namespace xfer
