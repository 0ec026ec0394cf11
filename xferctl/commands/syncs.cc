// xferctl syncs: syncs, the newest first.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/proto_json.h"
#include "xferctl/text.h"

namespace xfer {
namespace {

struct SyncsOptions {
  int32_t limit = 20;
};

absl::Status RunSyncs(Context& context, const SyncsOptions& options) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  // Without --job all jobs' syncs are listed.
  XFER_ASSIGN_OR_RETURN(const v1::ListSyncsReply reply,
                        client->ListSyncs(context.job, options.limit));
  if (context.json()) {
    context.Print(ToJson(reply).at("syncs"));
    return absl::OkStatus();
  }
  Table table({{"SYNC", Align::kRight},
               {"JOB"},
               {"VERSION", Align::kRight},
               {"MODE"},
               {"STATE"},
               {"STARTED"},
               {"MS", Align::kRight},
               {"BYTES", Align::kRight},
               {"MESSAGE"}});
  for (const v1::Sync& sync : reply.syncs()) {
    table.AddRow({absl::StrCat(sync.id()), sync.job(), absl::StrCat(sync.version()),
                  Text(sync.mode()), Text(sync.state()),
                  absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(sync.start_unix_ms()),
                                   absl::LocalTimeZone()),
                  Millis(sync.total_ns()), HumanBytes(sync.bytes_total()),
                  sync.outcome().message()});
  }
  context.Print(table);
  return absl::OkStatus();
}

}  // namespace

void AddSyncsCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<SyncsOptions>();
  CLI::App* command = app.add_subcommand("syncs", "Syncs, the newest first");
  AddJobOption(*command, context);
  command->add_option("--limit", options->limit, "How many at most")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  SetAction(*command, context, options, &RunSyncs);
}

}  // namespace xfer
