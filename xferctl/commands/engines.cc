// xferctl engines: the rollout engines of a job and their weight versions.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/proto_json.h"

namespace xfer {
namespace {

struct EnginesOptions {};

absl::Status RunEngines(Context& context, const EnginesOptions&) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(const std::string job, context.Job(*client));
  XFER_ASSIGN_OR_RETURN(const v1::ListEnginesReply reply, client->ListEngines(job));
  if (context.json()) {
    context.Print(ToJson(reply).at("engines"));
    return absl::OkStatus();
  }
  Table table(
      {{"ENGINE", Align::kRight}, {"VERSION", Align::kRight}, {"RANKS", Align::kRight}, {"STATE"}});
  for (const v1::EngineInfo& engine : reply.engines()) {
    Cell state = "";
    if (engine.dirty()) {
      state = {absl::StrCat("dirty: ", engine.dirty_reason()), Colour::kBad};
    } else if (engine.running_sync() != 0) {
      state = absl::StrCat("in sync ", engine.running_sync());
    } else if (engine.version() != 0) {
      state = {"clean", Colour::kGood};
    }
    table.AddRow({absl::StrCat(engine.engine()),
                  engine.version() == 0 ? std::string("-") : absl::StrCat(engine.version()),
                  absl::StrCat(engine.ranks(), "/", engine.ranks_expected()), state});
  }
  context.Print(table);
  return absl::OkStatus();
}

}  // namespace

void AddEnginesCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("engines", "Rollout engines of a job");
  AddJobOption(*command, context);
  SetAction(*command, context, std::make_shared<EnginesOptions>(), &RunEngines);
}

}  // namespace xfer
