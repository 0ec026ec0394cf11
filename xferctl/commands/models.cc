// xferctl models show MODEL: a model with all that follows from it; models add FILE.
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/layout/facts.h"
#include "nlohmann/json.hpp"
#include "xferctl/commands/commands.h"
#include "xferctl/exit.h"
#include "xferctl/model_choice.h"

namespace xfer {
namespace {

using Json = nlohmann::json;

struct ShowOptions {
  std::string name;
};

struct AddOptions {
  std::string file;
  bool replace = false;
};

Json ToJson(const BytesRange& range) { return {{"least", range.least}, {"most", range.most}}; }

Json ToJson(const ModelFacts& facts) {
  Json stages = Json::array();
  for (const ModelFacts::Stage& stage : facts.stages) {
    stages.push_back({{"first_layer", stage.first_layer},
                      {"layers", stage.layers},
                      {"rank_bytes", ToJson(stage.rank_bytes)}});
  }
  return {{"tensors", facts.tensors},
          {"checkpoint_bytes", facts.checkpoint_bytes},
          {"train",
           {{"stages", stages},
            {"ranks_a_stage", facts.ranks_a_stage},
            {"dp", facts.dp},
            {"expert_dp", facts.expert_dp},
            {"padded_vocab", facts.padded_vocab},
            {"experts_a_rank", facts.train_experts_a_rank}}},
          {"rollout",
           {{"engines", facts.engines},
            {"attention_tp", facts.attention_tp},
            {"query_heads_a_rank", facts.query_heads_a_rank},
            {"kv_heads_a_rank", facts.kv_heads_a_rank},
            {"kv_head_copies", facts.kv_head_copies},
            {"moe_tp", facts.moe_tp},
            {"experts_a_rank", facts.rollout_experts_a_rank},
            {"rank_bytes", ToJson(facts.engine_rank_bytes)}}}};
}

std::string Text(const BytesRange& range) {
  if (range.least == range.most) return HumanBytes(range.most);
  return absl::StrCat(HumanBytes(range.least), " to ", HumanBytes(range.most));
}

class FieldTable {
 public:
  template <typename Value>
  void Add(const char* field, const Value& value) {
    table_.AddRow({field, absl::StrCat(value)});
  }
  const Table& table() const { return table_; }

 private:
  Table table_{{{"FIELD"}, {"VALUE"}}};
};

void AddModel(const ModelSpec& spec, const ModelFacts& facts, FieldTable& out) {
  const HfConfig& config = spec.config;
  out.Add("name", spec.name);
  out.Add("repository", spec.hf_repo);
  out.Add("architecture", config.architecture);
  out.Add("type", Name(config.dtype));
  out.Add("layers", config.num_hidden_layers);
  out.Add("hidden size", config.hidden_size);
  if (!config.layer_is_moe(0)) out.Add("feed-forward size", config.intermediate_size);
  out.Add("vocabulary",
          absl::StrCat(config.vocab_size, config.tie_word_embeddings ? ", head tied to it" : ""));
  out.Add("attention heads", config.num_attention_heads);
  if (!config.is_mla()) {
    out.Add("key/value heads", absl::StrCat(config.num_key_value_heads, " of ", config.head_dim));
  } else {
    out.Add("latent ranks", absl::StrCat("q ", config.q_lora_rank, ", kv ", config.kv_lora_rank));
  }
  if (config.index_n_heads > 0) {
    out.Add("indexer heads", absl::StrCat(config.index_n_heads, " of ", config.index_head_dim));
  }
  if (config.is_moe()) {
    out.Add("experts", absl::StrCat(config.num_experts, " of size ", config.moe_intermediate_size,
                                    ", shared ", config.n_shared_experts));
    out.Add("dense layers", config.first_k_dense_replace);
  }
  if (config.num_nextn_predict_layers > 0) {
    out.Add("MTP layers",
            absl::StrCat(config.num_nextn_predict_layers, ", trained ", spec.train.mtp_layers));
  }
  out.Add("tensors", facts.tensors);
  out.Add("checkpoint", HumanBytes(facts.checkpoint_bytes));
}

void AddTraining(const ModelSpec& spec, const ModelFacts& facts, FieldTable& out) {
  out.Add("training", absl::StrCat(spec.train.world, " ranks, ", Describe(spec.train)));
  out.Add("  pipeline stages",
          absl::StrJoin(facts.stages, " + ", [](std::string* text, const ModelFacts::Stage& stage) {
            absl::StrAppend(text, stage.layers);
          }) + absl::StrCat(" layers, ", facts.ranks_a_stage, " ranks each"));
  out.Add("  data parallel", facts.dp);
  if (spec.config.is_moe()) {
    out.Add("  experts a rank", absl::StrCat(facts.train_experts_a_rank, ", held by ",
                                             facts.expert_dp, " rank(s) each"));
  }
  out.Add("  padded vocabulary", facts.padded_vocab);
  for (size_t i = 0; i < facts.stages.size(); ++i) {
    out.Add(absl::StrCat("  a rank of stage ", i).c_str(), Text(facts.stages[i].rank_bytes));
  }
}

void AddRollout(const ModelSpec& spec, const ModelFacts& facts, FieldTable& out) {
  out.Add("rollout", absl::StrCat(spec.rollout.world, " ranks, ", Describe(spec.rollout)));
  out.Add("  attention TP",
          absl::StrCat(facts.attention_tp, ", ", facts.query_heads_a_rank, " query heads a rank"));
  if (facts.kv_heads_a_rank > 0) {
    out.Add("  key/value heads a rank", absl::StrCat(facts.kv_heads_a_rank, ", held by ",
                                                     facts.kv_head_copies, " rank(s) each"));
  }
  if (spec.config.is_moe()) {
    out.Add("  experts a rank",
            absl::StrCat(facts.rollout_experts_a_rank, ", each cut in ", facts.moe_tp));
  }
  if (spec.rollout.moe_dense_tp != 0) out.Add("  dense MLP TP", spec.rollout.moe_dense_tp);
  out.Add("  a rank of an engine", Text(facts.engine_rank_bytes));
}

void AddCluster(const ModelSpec& spec, FieldTable& out) {
  out.Add("nodes", absl::StrCat(spec.nodes, " x ", spec.gpus_per_node, " GPUs"));
  out.Add("bucket, p2p", absl::StrCat(spec.buffer_size_gb, " GB"));
  out.Add("bucket, broadcast",
          absl::StrCat(spec.buffer_size_broadcast_gb.value_or(spec.buffer_size_gb), " GB"));
  out.Add("transfer timeout", absl::StrCat(spec.transfer_timeout_s, " s"));
  if (spec.published.has_value()) {
    out.Add("published elsewhere",
            absl::StrFormat("%.0f ms over NCCL, %.0f ms over RDMA", spec.published->nccl_ms,
                            spec.published->rdma_ms));
  }
}

absl::Status RunShow(Context& context, const ShowOptions& options) {
  std::unique_ptr<CoordinatorClient> client;
  if (context.CoordinatorGiven() && !IsModelFile(options.name)) {
    XFER_ASSIGN_OR_RETURN(client, context.Connect());
  }
  XFER_ASSIGN_OR_RETURN(const ModelSpec spec, FindModel(options.name, client.get()));
  XFER_ASSIGN_OR_RETURN(const ModelFacts facts, DeriveFacts(spec));
  if (context.json()) {
    Json document = Json::parse(ToJson(spec));
    document["derived"] = ToJson(facts);
    context.Print(document);
    return absl::OkStatus();
  }
  FieldTable out;
  AddModel(spec, facts, out);
  AddCluster(spec, out);
  AddTraining(spec, facts, out);
  AddRollout(spec, facts, out);
  context.Print(out.table());
  return absl::OkStatus();
}

absl::Status RunAdd(Context& context, const AddOptions& options) {
  XFER_ASSIGN_OR_RETURN(const std::string text, ReadModelFile(options.file));
  XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client, context.Connect());
  const absl::StatusOr<v1::Model> model = client->AddModel(text, options.replace);
  if (!model.ok()) return InContext(model.status(), options.file);
  if (context.json()) {
    context.Print(Json::parse(model->spec_json()));
    return absl::OkStatus();
  }
  context.Say(absl::StrCat("the coordinator at ", client->address(), " knows ", model->name()));
  return absl::OkStatus();
}

}  // namespace

void AddModelsCommand(CLI::App& app, Context& context) {
  CLI::App* models = app.add_subcommand("models", "The model registry");
  models->require_subcommand(1);
  auto show_options = std::make_shared<ShowOptions>();
  CLI::App* show =
      models->add_subcommand("show", "One model: shape, profile, and what follows from both");
  show->add_option("name", show_options->name,
                   "Model, as `xferctl list` shows them, or the path of a model file (*.json)")
      ->required();
  SetAction(*show, context, show_options, &RunShow);
  auto add_options = std::make_shared<AddOptions>();
  CLI::App* add = models->add_subcommand("add", "Make a model known to the coordinator");
  add->add_option("file", add_options->file,
                  "Model file, in the form that `models show NAME --output json` prints")
      ->required();
  add->add_flag("--replace", add_options->replace,
                "Put it in place of the model that has its name; jobs keep the model they have");
  SetAction(*add, context, add_options, &RunAdd);
}

}  // namespace xfer
