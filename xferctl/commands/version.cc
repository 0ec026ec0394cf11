// xferctl version
#include <memory>

#include "CLI/CLI.hpp"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"

namespace xfer {
namespace {

struct VersionOptions {};

absl::Status RunVersion(Context& context, const VersionOptions&) {
  if (context.json()) {
    context.Print(nlohmann::json{{"version", XFER_VERSION}});
  } else {
    context.Print(std::string("xferctl " XFER_VERSION "\n"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddVersionCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("version", "The version of this program");
  SetAction(*command, context, std::make_shared<VersionOptions>(), &RunVersion);
}

}  // namespace xfer
