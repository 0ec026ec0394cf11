// xferctl prepare MODEL: a checkpoint, and the training ranks' shards of it.
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/prepare.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/exit.h"
#include "xferctl/model_choice.h"
#include "xferctl/progress.h"

namespace xfer {
namespace {

struct PrepareFlags {
  ModelOptions model;
  std::string hf_dir;
  bool synthesize = false;
  std::optional<std::string> ckpt_dir;
  uint64_t seed = 0;
};

absl::Status CheckFlags(const PrepareFlags& flags) {
  if (flags.hf_dir.empty() && !flags.synthesize) {
    return UsageError("where do the weights come from? give --hf-dir DIR or --synthesize");
  }
  if (!flags.hf_dir.empty() && flags.synthesize) {
    return UsageError("--hf-dir and --synthesize exclude each other");
  }
  if (!flags.hf_dir.empty() && flags.model.tiny) {
    return UsageError("--tiny changes the model's widths, so it needs --synthesize, not --hf-dir");
  }
  return absl::OkStatus();
}

absl::Status RunPrepare(Context& context, const PrepareFlags& flags) {
  XFER_RETURN_IF_ERROR(CheckFlags(flags));
  PrepareOptions options;
  XFER_ASSIGN_OR_RETURN(options.spec, ChooseModel(flags.model));
  XFER_ASSIGN_OR_RETURN(const std::string root,
                        StringSetting(flags.ckpt_dir, "CKPT_SAVE_DIR", "./ckpt", context.env));
  options.hf_dir = flags.hf_dir;
  options.synthesize = flags.synthesize;
  options.cut = !flags.hf_dir.empty() && flags.model.layers.has_value();
  options.tiny = flags.model.tiny;
  options.out_dir = absl::StrCat(root, "/", ChoiceName(options.spec.name, flags.model));
  options.seed = flags.seed;
  ProgressLine line(context.stderr_is_terminal);
  options.progress = [&line](uint64_t done, uint64_t total, absl::string_view file) {
    line.Show(ProgressBar(done, total, file));
  };
  XFER_ASSIGN_OR_RETURN(const PrepareResult result, Prepare(options));
  line.Clear();
  if (context.json()) {
    context.Print(nlohmann::json{{"model", options.spec.name},
                                 {"dir", options.out_dir},
                                 {"hf_dir", result.prepared.hf_dir},
                                 {"synthesized", result.prepared.synthesized},
                                 {"seed", result.prepared.seed},
                                 {"already_done", result.already_done},
                                 {"reason", result.reason},
                                 {"bytes_written", result.bytes_written},
                                 {"shards", result.prepared.shards}});
    return absl::OkStatus();
  }
  if (result.already_done) {
    context.Say(absl::StrCat(options.out_dir, " is prepared already"));
  } else {
    context.Say(absl::StrCat("prepared ", options.out_dir, ": ", result.prepared.shards.size(),
                             " training ranks, ", HumanBytes(result.bytes_written), " written"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddPrepareCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<PrepareFlags>();
  CLI::App* command =
      app.add_subcommand("prepare", "Write a model's checkpoint and its training shards");
  AddModelOptions(*command, flags->model);
  command->add_option("--hf-dir", flags->hf_dir, "Hugging Face directory of the model");
  command->add_flag("--synthesize", flags->synthesize, "Make up the weights, from --seed");
  command->add_option("--ckpt-dir", flags->ckpt_dir,
                      "Where to write (else CKPT_SAVE_DIR, else ./ckpt)");
  command->add_option("--seed", flags->seed, "Seed of made-up weights")->capture_default_str();
  SetAction(*command, context, flags, &RunPrepare);
}

}  // namespace xfer
