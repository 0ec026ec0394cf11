// xferctl ranks: the registered ranks of a job.
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

struct RanksOptions {};

// What the rank says of its weights.
Cell OwnWord(const v1::RankInfo& rank) {
  if (rank.id().role() != v1::ROLE_ROLLOUT) {
    if (rank.ready_version() == 0) return "";
    return absl::StrCat("ready at version ", rank.ready_version());
  }
  const v1::OwnerReport& report = rank.owner_report();
  if (report.version() == 0) return "";
  if (report.outcome().code() == 0)
    return {absl::StrCat("equal at version ", report.version()), Colour::kGood};
  return {absl::StrCat("version ", report.version(), ": ", report.outcome().message()),
          Colour::kBad};
}

absl::Status RunRanks(Context& context, const RanksOptions&) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(const std::string job, context.Job(*client));
  XFER_ASSIGN_OR_RETURN(const v1::ListRanksReply reply, client->ListRanks(job));
  if (context.json()) {
    context.Print(ToJson(reply).at("ranks"));
    return absl::OkStatus();
  }
  Table table({{"RANK"},
               {"NODE"},
               {"PID", Align::kRight},
               {"REGISTERED", Align::kRight},
               {"MODEL", Align::kRight},
               {"PIECES", Align::kRight},
               {"SAYS"}});
  for (const v1::RankInfo& rank : reply.ranks()) {
    table.AddRow({Text(rank.id()), rank.node(), absl::StrCat(rank.pid()),
                  HumanBytes(rank.registered_bytes()), HumanBytes(rank.model_bytes()),
                  absl::StrCat(rank.pieces()), OwnWord(rank)});
  }
  context.Print(table);
  return absl::OkStatus();
}

}  // namespace

void AddRanksCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("ranks", "Registered ranks of a job");
  AddJobOption(*command, context);
  SetAction(*command, context, std::make_shared<RanksOptions>(), &RunRanks);
}

}  // namespace xfer
