// xferctl timings SYNC: where the time of a sync went.
#include <algorithm>
#include <memory>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/proto_json.h"
#include "xferctl/report.h"
#include "xferctl/text.h"

namespace xfer {
namespace {

struct TimingsOptions {
  uint64_t sync = 0;
  bool transfers = false;
};

Table RankTable(const v1::Sync& sync) {
  Table table({{"RANK"},
               {"NODE"},
               {"FIRST BYTE MS", Align::kRight},
               {"LAST BYTE MS", Align::kRight},
               {"BYTES", Align::kRight},
               {"GB/S", Align::kRight},
               {"TRANSFERS", Align::kRight},
               {"RETRIES", Align::kRight},
               {"DIGEST MS", Align::kRight},
               {"BY"}});
  for (const v1::RankTiming& rank : sync.ranks()) {
    std::vector<std::string> by;
    for (const auto& [transport, bytes] : rank.bytes_by_transport()) {
      by.push_back(absl::StrCat(transport, " ", HumanBytes(bytes)));
    }
    std::sort(by.begin(), by.end());
    table.AddRow({Text(rank.id()), rank.node(), Millis(rank.start_ns()), Millis(rank.end_ns()),
                  HumanBytes(rank.bytes()),
                  GigabytesPerSecond(rank.bytes(), rank.end_ns() - rank.start_ns()),
                  absl::StrCat(rank.transfers()), absl::StrCat(rank.retries()),
                  Millis(rank.digest_ns()), absl::StrJoin(by, ", ")});
  }
  return table;
}

Table TransferTable(const std::vector<v1::TransferTiming>& transfers) {
  Table table({{"TRANSFER", Align::kRight},
               {"FROM"},
               {"TO"},
               {"START MS", Align::kRight},
               {"END MS", Align::kRight},
               {"BYTES", Align::kRight},
               {"GB/S", Align::kRight},
               {"BY"},
               {"RETRIES", Align::kRight},
               {"TENSOR"}});
  for (const v1::TransferTiming& t : transfers) {
    table.AddRow({absl::StrCat(t.transfer()), Text(t.source()), Text(t.destination()),
                  Millis(t.start_ns()), Millis(t.end_ns()), HumanBytes(t.bytes()),
                  GigabytesPerSecond(t.bytes(), t.end_ns() - t.start_ns()), t.transport(),
                  absl::StrCat(t.retries()), t.tensor()});
  }
  return table;
}

absl::Status RunTimings(Context& context, const TimingsOptions& options) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  v1::Sync sync;
  std::vector<v1::TransferTiming> transfers;
  XFER_RETURN_IF_ERROR(
      client->GetTimings(options.sync, options.transfers, [&](const v1::TimingsPart& part) {
        if (part.has_sync()) sync = part.sync();
        transfers.insert(transfers.end(), part.transfers().begin(), part.transfers().end());
      }));
  if (context.json()) {
    nlohmann::json list = nlohmann::json::array();
    for (const v1::TransferTiming& transfer : transfers) list.push_back(ToJson(transfer));
    context.Print(nlohmann::json{{"sync", ToJson(sync)}, {"transfers", std::move(list)}});
    return absl::OkStatus();
  }
  context.Say(absl::StrCat("sync ", sync.id(), " of job ", sync.job(), ", version ", sync.version(),
                           ": ", Text(sync.state()).text));
  context.Print(PhaseTable(sync));
  context.Say("");
  context.Print(RankTable(sync));
  if (options.transfers) {
    context.Say("");
    context.Print(TransferTable(transfers));
  }
  return absl::OkStatus();
}

}  // namespace

void AddTimingsCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<TimingsOptions>();
  CLI::App* command =
      app.add_subcommand("timings", "Timings of a sync by phase, rank and transfer");
  command->add_option("sync", options->sync, "Number of the sync; by default the newest");
  command->add_flag("--transfers", options->transfers, "Every single transfer, too");
  SetAction(*command, context, options, &RunTimings);
}

}  // namespace xfer
