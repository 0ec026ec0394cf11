// xferctl doctor: whether this node can take part in RDMA, and what to do where it cannot.
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "agent/transport/verbs/doctor.h"
#include "agent/transport/verbs/reach.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/exit.h"
#include "xferctl/text.h"

namespace xfer {
namespace {

using nlohmann::json;

struct DoctorFlags {
  std::string peer;
  std::vector<std::string> nics;
  double timeout_s = 20;
};

json ToJson(const verbs::NodeFacts& facts) {
  json devices = json::array();
  for (const verbs::NodeFacts::Device& device : facts.devices) {
    json ports = json::array();
    for (size_t i = 0; i < device.ports.size(); ++i) {
      const verbs::Port& port = device.ports[i];
      json gids = json::array();
      for (const verbs::Gid& gid : port.gids) {
        gids.push_back({{"index", gid.index}, {"gid", gid.ToString()}});
      }
      ports.push_back({{"number", port.number},
                       {"active", port.active()},
                       {"link", port.ethernet ? "ethernet" : "infiniband"},
                       {"interface", device.interfaces[i]},
                       {"mtu", port.active_mtu},
                       {"max_mtu", port.max_mtu},
                       {"gbit_per_s", port.gbit_per_s},
                       {"gids", gids}});
    }
    devices.push_back({{"name", device.name},
                       {"error", device.error},
                       {"numa_node", device.numa_node},
                       {"dma_buf", verbs::Name(device.dma_buf)},
                       {"max_region_bytes", device.max_region_bytes},
                       {"ports", ports}});
  }
  json gpus = json::array();
  for (const verbs::NodeFacts::Gpu& gpu : facts.gpus) {
    json nics = json::object();
    for (const auto& [nic, nearness] : gpu.nics) nics[nic] = verbs::Describe(nearness);
    gpus.push_back({{"address", gpu.address}, {"model", gpu.model}, {"nics", nics}});
  }
  json out = {{"devices", devices}, {"gpus", gpus}, {"may_lock_any_memory", facts.may_lock_any}};
  if (!facts.may_lock_any) out["locked_memory_limit_bytes"] = facts.locked_memory_limit;
  return out;
}

json ToJson(const verbs::PeerReach& reach) {
  json rails = json::array();
  for (const verbs::PeerReach::Rail& rail : reach.rails) {
    rails.push_back({{"rail", rail.name},
                     {"ok", rail.status.ok()},
                     {"error", std::string(rail.status.message())},
                     {"ms", absl::ToDoubleMilliseconds(rail.time)}});
  }
  return {{"node", reach.node}, {"transports", reach.transports}, {"rails", rails}};
}

std::string Describe(const verbs::PeerReach& reach) {
  std::string out = absl::StrCat("peer ", reach.node, " receives by ",
                                 absl::StrJoin(reach.transports, ", "), "\n");
  for (const verbs::PeerReach::Rail& rail : reach.rails) {
    absl::StrAppend(&out, "  rail ", rail.name, ": ",
                    rail.status.ok()
                        ? absl::StrCat("acknowledged in ", absl::FormatDuration(rail.time))
                        : std::string(rail.status.message()),
                    "\n");
  }
  return out;
}

// What is wrong with the way to the peer, as findings.
void JudgePeer(const std::string& address, const absl::StatusOr<verbs::PeerReach>& reach,
               std::vector<verbs::Finding>& findings) {
  using verbs::Severity;
  if (!reach.ok()) {
    findings.push_back({Severity::kProblem,
                        absl::StrCat("peer ", address, ": ", reach.status().message()),
                        "mend that, here or at the peer, and ask again"});
    return;
  }
  if (reach->rails.empty()) {
    findings.push_back({Severity::kProblem,
                        absl::StrCat("node ", reach->node, " does not receive by verbs"),
                        "run xferctl doctor there; its agent says at its start why"});
  }
  for (const verbs::PeerReach::Rail& rail : reach->rails) {
    if (rail.status.ok()) continue;
    findings.push_back({Severity::kProblem, absl::StrCat("rail ", rail.name, " does not work"),
                        std::string(rail.status.message())});
  }
}

absl::Status RunDoctor(Context& context, const DoctorFlags& flags) {
  const verbs::NodeFacts facts = verbs::CollectFacts();
  std::vector<verbs::Finding> findings = verbs::Judge(facts);
  json document = ToJson(facts);
  if (!context.json()) context.Print(verbs::Describe(facts));
  if (!flags.peer.empty()) {
    const absl::StatusOr<verbs::PeerReach> reach =
        verbs::ProbePeer(flags.peer, flags.nics, absl::Now() + absl::Seconds(flags.timeout_s));
    if (reach.ok()) {
      document["peer"] = ToJson(*reach);
      if (!context.json()) context.Print(Describe(*reach));
    }
    JudgePeer(flags.peer, reach, findings);
  }
  bool usable = true;
  json list = json::array();
  for (const verbs::Finding& finding : findings) {
    const bool problem = finding.severity == verbs::Severity::kProblem;
    usable &= !problem;
    list.push_back({{"severity", problem ? "problem" : "warning"},
                    {"what", finding.what},
                    {"remedy", finding.remedy}});
    context.Say(Paint(absl::StrCat(problem ? "problem: " : "warning: ", finding.what),
                      problem ? Colour::kBad : Colour::kNone, context.colours()));
    context.Say(absl::StrCat("  to mend it: ", finding.remedy));
  }
  document["findings"] = list;
  document["usable"] = usable;
  if (context.json()) context.Print(document);
  if (usable) {
    context.Say("RDMA can be used here");
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      flags.peer.empty() ? "RDMA cannot be used on this node as it is"
                         : "RDMA cannot be used between this node and the peer as it is");
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Say what this node's RDMA devices can do, what is wrong, and how to mend it");
  command->add_option("--peer", flags->peer,
                      "HOST:PORT of another node's agent (its --listen): try the way there, too");
  command
      ->add_option("--nics", flags->nics,
                   "Devices or ports to try it from, as the agent here has them (default: all)")
      ->delimiter(',');
  command->add_option("--timeout", flags->timeout_s, "Seconds for the peer to answer")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  SetAction(*command, context, flags, &RunDoctor);
}

}  // namespace xfer
