// xferctl jobs: the coordinator's jobs; jobs create NAME.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/prepare.h"
#include "common/model/model.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/exit.h"
#include "xferctl/model_choice.h"
#include "xferctl/proto_json.h"

namespace xfer {
namespace {

struct JobsOptions {};

struct CreateOptions {
  std::string name;
  std::string prepared;
  ModelOptions model;
};

Cell State(const v1::Job& job) {
  if (!job.finished()) return "open";
  if (job.outcome().code() == 0) return {"finished", Colour::kGood};
  return {absl::StrCat("failed: ", job.outcome().message()), Colour::kBad};
}

absl::Status RunJobs(Context& context, const JobsOptions&) {
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(const v1::ListJobsReply reply, client->ListJobs());
  if (context.json()) {
    context.Print(ToJson(reply).at("jobs"));
    return absl::OkStatus();
  }
  Table table({{"JOB"},
               {"MODEL"},
               {"TRAINERS", Align::kRight},
               {"ENGINES", Align::kRight},
               {"GENERATION", Align::kRight},
               {"STATE"}});
  for (const v1::Job& job : reply.jobs()) {
    XFER_ASSIGN_OR_RETURN(const ModelSpec spec, ParseModelSpec(job.spec_json()));
    table.AddRow({job.name(), spec.name, absl::StrCat(spec.train.world),
                  absl::StrCat(spec.rollout.engines()), absl::StrCat(job.generation()),
                  State(job)});
  }
  context.Print(table);
  return absl::OkStatus();
}

// The model that the job is about: as it was prepared, or as the registry has it.
absl::StatusOr<ModelSpec> SpecOf(const CreateOptions& options, CoordinatorClient& client) {
  if (!options.model.name.empty()) return ChooseModel(options.model, &client);
  XFER_ASSIGN_OR_RETURN(const Prepared prepared, OpenPrepared(options.prepared));
  return prepared.spec;
}

absl::Status RunCreate(Context& context, const CreateOptions& options) {
  if (options.prepared.empty() == options.model.name.empty()) {
    return UsageError("jobs create needs either --prepared DIR or --model NAME");
  }
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  XFER_ASSIGN_OR_RETURN(const ModelSpec spec, SpecOf(options, *client));
  XFER_ASSIGN_OR_RETURN(const v1::Job job, client->CreateJob(options.name, ToJson(spec)));
  if (context.json()) {
    context.Print(ToJson(job));
  } else {
    context.Say(absl::StrCat("job ", job.name(), " waits for ", spec.train.world, " training and ",
                             spec.rollout.world, " rollout ranks of ", spec.name));
  }
  return absl::OkStatus();
}

}  // namespace

void AddJobsCommand(CLI::App& app, Context& context) {
  CLI::App* jobs = app.add_subcommand("jobs", "Jobs of the coordinator");
  jobs->require_subcommand(0, 1);
  SetAction(*jobs, context, std::make_shared<JobsOptions>(), &RunJobs);
  auto options = std::make_shared<CreateOptions>();
  CLI::App* create = jobs->add_subcommand("create", "Make a job");
  create->add_option("name", options->name, "Letters, digits, '.', '_' and '-'")->required();
  create->add_option("--prepared", options->prepared,
                     "Take the model from this prepared directory");
  create->add_option(
      "--model", options->model.name,
      "Take the model from the coordinator's registry, or from a model file (*.json)");
  create->add_option("--layers", options->model.layers, "With --model: the first N layers only")
      ->type_name("N");
  create->add_flag("--tiny", options->model.tiny, "With --model: shrunk widths");
  SetAction(*create, context, options, &RunCreate);
}

}  // namespace xfer
