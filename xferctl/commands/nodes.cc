// xferctl nodes: the agents that the coordinator knows.
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

struct NodesOptions {};

absl::Status RunNodes(Context& context, const NodesOptions&) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(const v1::ListNodesReply reply, client->ListNodes());
  if (context.json()) {
    context.Print(ToJson(reply).at("nodes"));
    return absl::OkStatus();
  }
  Table table({{"NODE"},
               {"STATE"},
               {"RANKS", Align::kRight},
               {"REGISTERED", Align::kRight},
               {"NICS", Align::kRight},
               {"HEARTBEAT", Align::kRight},
               {"CLOCK", Align::kRight},
               {"AGENT"},
               {"DATA"},
               {"VERSION"}});
  for (const v1::NodeInfo& node : reply.nodes()) {
    table.AddRow({node.name(), Text(node.state()), absl::StrCat(node.ranks()),
                  HumanBytes(node.registered_bytes()), absl::StrCat(node.nics()),
                  absl::StrCat(node.last_heartbeat_age_ms(), " ms ago"),
                  absl::StrCat(Millis(node.clock_offset_ns()), " ms"), node.peer_address(),
                  node.data_address().empty() ? "-" : node.data_address(), node.version()});
  }
  context.Print(table);
  return absl::OkStatus();
}

}  // namespace

void AddNodesCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("nodes", "Nodes and their agents");
  SetAction(*command, context, std::make_shared<NodesOptions>(), &RunNodes);
}

}  // namespace xfer
