// xferctl plan: the plan of a model of the registry at its true size, or of a running job.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/rank_lists.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/plan/planner.h"
#include "common/plan/spec_plan.h"
#include "common/rpc/convert.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/exit.h"
#include "xferctl/model_choice.h"
#include "xferctl/proto_json.h"

namespace xfer {
namespace {

struct PlanFlags {
  ModelOptions model;
  std::string engines;
  int32_t transfers = 20;
};

void PrintPlan(const Context& context, const v1::GetPlanReply& reply) {
  if (context.json()) {
    context.Print(ToJson(reply));
    return;
  }
  context.Print(reply.text());
  const v1::PlanStats& stats = reply.stats();
  context.Say(absl::StrFormat(
      "%s%u transfers, %s, %s between nodes; busiest NIC: out %s, in %s; bound %s, ratio %.3f",
      reply.cached() ? std::string("cached: ")
                     : absl::StrCat("planned in ", Millis(reply.planning_ns()), " ms: "),
      stats.transfers(), HumanBytes(stats.bytes()), HumanBytes(stats.wire_bytes()),
      HumanBytes(stats.busiest_out_bytes()), HumanBytes(stats.busiest_in_bytes()),
      HumanBytes(stats.lower_bound_bytes()), stats.ratio()));
}

absl::Status PlanModel(const Context& context, const PlanFlags& flags) {
  XFER_ASSIGN_OR_RETURN(const ModelSpec spec, ChooseModel(flags.model));
  XFER_ASSIGN_OR_RETURN(const SpecPlanInput input, PlanInputFromSpec(spec));
  const int64_t start = Clock::Real()->MonotonicNanos();
  XFER_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(input.input));
  v1::GetPlanReply reply;
  reply.set_planning_ns(Clock::Real()->MonotonicNanos() - start);
  *reply.mutable_stats() = ToProto(plan.stats, plan.transfers.size());
  reply.set_text(Describe(plan, *input.tensors, flags.transfers));
  PrintPlan(context, reply);
  return absl::OkStatus();
}

absl::Status RunPlan(Context& context, const PlanFlags& flags) {
  auto engines = ParseNumberList(flags.engines);
  if (!engines.ok()) return InContext(AsUsageError(engines.status()), "--engines");
  if (!flags.model.name.empty()) {
    if (!context.job.empty()) return UsageError("plan takes either a model or --job, not both");
    if (!engines->empty())
      return UsageError("--engines is for the plan of a job; a model is planned whole");
    return PlanModel(context, flags);
  }
  if (flags.model.layers.has_value() || flags.model.tiny) {
    return UsageError("--layers and --tiny need a model: xferctl plan MODEL");
  }
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  v1::GetPlanRequest request;
  XFER_ASSIGN_OR_RETURN(*request.mutable_job(), context.Job(*client));
  request.set_max_transfers(flags.transfers);
  for (int32_t engine : *engines) request.add_engines(engine);
  XFER_ASSIGN_OR_RETURN(const v1::GetPlanReply reply, client->GetPlan(request));
  PrintPlan(context, reply);
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand(
      "plan", "The plan of a model (no coordinator needed), or of a job that is running");
  AddModelOptions(*command, flags->model);
  command->get_option("model")->required(false);
  AddJobOption(*command, context);
  command->add_option("--engines", flags->engines, "Of a job: engines, e.g. 0,2-3; by default all");
  command->add_option("--transfers", flags->transfers, "How many transfers to list")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  SetAction(*command, context, flags, &RunPlan);
}

}  // namespace xfer
