#include "xferctl/run/run.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/coordinator_client.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/exit.h"
#include "xferctl/progress.h"
#include "xferctl/run/cluster.h"
#include "xferctl/run/machines.h"
#include "xferctl/run/node_ranks.h"
#include "xferctl/run/preparation.h"
#include "xferctl/run/steps.h"
#include "xferctl/run/supervisor.h"
#include "xferctl/signal_watch.h"

namespace xfer {
namespace {

// A child's death makes calls fail before the watcher has said so; its word is the better one.
constexpr absl::Duration kBlamePatience = absl::Milliseconds(500);

// Everything between the first child and the last.
class Session {
 public:
  Session(const Context& context, const RunOptions& options, std::vector<NodeRanks> here,
          std::unique_ptr<PrivateDirectory> directory, CallCanceller& calls)
      : context_(context),
        options_(options),
        here_(std::move(here)),
        directory_(std::move(directory)),
        calls_(calls),
        supervisor_(directory_->path(), calls),
        cluster_(options_, here_, supervisor_, directory_->path()) {}

  Supervisor& supervisor() { return supervisor_; }

  absl::Status Run() {
    absl::Status status = options_.is_head() ? RunHead() : RunOther();
    if (status.ok()) status = cluster_.StopRanksAndAgents();
    if (status.ok() && options_.is_head()) LeaveHead(status);
    if (!status.ok()) status = Fail(status);
    if (status.ok()) status = cluster_.StopCoordinator();
    if (options_.is_head()) TellEnd(status);
    return status;
  }

 private:
  absl::Status RunHead() {
    XFER_ASSIGN_OR_RETURN(address_, cluster_.StartCoordinator());
    XFER_RETURN_IF_ERROR(cluster_.StartAgents(address_));
    XFER_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorClient> client,
                          CoordinatorClient::Connect(address_, options_.deadline, &calls_));
    XFER_RETURN_IF_ERROR(client->CreateJob(options_.name, ToJson(options_.job_spec)).status());
    job_made_ = true;
    TellStart();
    XFER_RETURN_IF_ERROR(StartRanks());
    XFER_RETURN_IF_ERROR(WaitForRanks(context_, *client, options_));
    return RunSteps(context_, *client, options_, syncs_);
  }

  absl::Status RunOther() {
    context_.Say(absl::StrCat("node ", *options_.node_rank,
                              ": waiting for the head's coordinator at ", options_.head_address()));
    XFER_ASSIGN_OR_RETURN(
        const std::unique_ptr<CoordinatorClient> client,
        CoordinatorClient::Connect(options_.head_address(), options_.deadline, &calls_));
    XFER_RETURN_IF_ERROR(WaitForJob(*client, options_, calls_));
    XFER_RETURN_IF_ERROR(cluster_.StartAgents(options_.head_address()));
    XFER_RETURN_IF_ERROR(StartRanks());
    context_.Say(absl::StrCat("node ", *options_.node_rank, ": ", here_.front().size(),
                              " ranks take part in job ", options_.name));
    return WaitForFinish(*client, options_);
  }

  absl::Status StartRanks() {
    ProgressLine line(context_.stderr_is_terminal);
    return cluster_.StartRanks([&](size_t i) {
      line.Show(absl::StrCat("starting the ranks of ", here_[i].node, " (", i + 1, " of ",
                             here_.size(), ")"));
    });
  }

  // Tells whoever watches the job how it ended, and gives other machines time to leave.
  void LeaveHead(const absl::Status& outcome) {
    const absl::Status told = FinishRun(address_, options_, here_, outcome);
    // The run's own outcome stands; it is only that others may not know it.
    if (!told.ok()) fprintf(stderr, "xferctl: ending the job: %s\n", OneLine(told).c_str());
  }

  // Ends everything at once; returns the reason that is worth telling.
  absl::Status Fail(const absl::Status& status) {
    absl::Status reason =
        supervisor_.Interruption(status == calls_.status() ? absl::ZeroDuration() : kBlamePatience);
    if (reason.ok()) {
      reason = status;
      // A run that failed by itself still shows what the ranks hold.
      if (!options_.dump_dir.empty()) (void)cluster_.StopRanksAndAgents();
    }
    // With all nodes on this machine nobody else watches, and the coordinator may be the one that
    // died.
    if (job_made_ && options_.node_rank.has_value()) LeaveHead(reason);
    cluster_.Abandon();
    for (const std::string& line : supervisor_.LogTail()) fprintf(stderr, "%s\n", line.c_str());
    return reason;
  }

  void TellStart() const {
    const ModelSpec& spec = options_.spec;
    context_.Say(absl::StrCat(options_.name, ": ", spec.train.world, " training ranks (",
                              Describe(spec.train), "), ", spec.rollout.engines(), " engines of ",
                              spec.rollout.gpus_per_engine, ", ",
                              options_.node_rank.has_value() ? "this machine's ranks on " : "on ",
                              here_.size(), here_.size() == 1 ? " node" : " nodes"));
  }

  void TellEnd(const absl::Status& status) const {
    if (context_.json()) {
      context_.Print(RunDocument(options_, syncs_, status));
      return;
    }
    if (!status.ok()) return;
    if (syncs_.size() > 1) {
      context_.Say(absl::StrCat("\nsteady steps (2 to ", syncs_.size(), "):"));
      context_.Print(SummaryTable(syncs_));
    }
    context_.Say(absl::StrCat(
        "\n", syncs_.size(), syncs_.size() == 1 ? " sync of " : " syncs of ", options_.name,
        " done; ",
        options_.validate
            ? absl::StrCat("all ", options_.spec.rollout.world,
                           " rollout ranks equal to the checkpoint")
            : std::string("the engines' weights were not compared (validation is off)")));
    if (!options_.dump_dir.empty())
      context_.Say(absl::StrCat("what every rank holds is in ", options_.dump_dir));
  }

  const Context& context_;
  const RunOptions& options_;
  const std::vector<NodeRanks> here_;
  const std::unique_ptr<PrivateDirectory> directory_;
  CallCanceller& calls_;
  Supervisor supervisor_;
  Cluster cluster_;
  std::string address_;
  bool job_made_ = false;
  std::vector<v1::Sync> syncs_;
};

// The nodes that this machine stands for.
absl::StatusOr<std::vector<NodeRanks>> NodesHere(const RunOptions& options) {
  auto nodes = PlaceRanks(options.spec, options.nodes);
  if (!nodes.ok()) return InContext(AsUsageError(nodes.status()), "--nodes");
  if (!options.node_rank.has_value()) return nodes;
  if (static_cast<size_t>(*options.node_rank) >= nodes->size()) {
    return UsageError(absl::StrCat("--node-rank is ", *options.node_rank,
                                   ", but the ranks stand on ", nodes->size(),
                                   " nodes: give --nodes"));
  }
  return std::vector<NodeRanks>{std::move((*nodes)[*options.node_rank])};
}

}  // namespace

absl::Status Run(Context& context, const RunFlags& flags) {
  XFER_ASSIGN_OR_RETURN(const RunOptions options, ResolveRunOptions(context, flags));
  XFER_ASSIGN_OR_RETURN(std::vector<NodeRanks> here, NodesHere(options));
  for (const char* program : {"xfer-coordinator", "xfer-agent", "xfer-rank"}) {
    XFER_RETURN_IF_ERROR(FindProgram(program).status());
  }
  // Until the first child is started, a signal may end this process the plain way.
  XFER_RETURN_IF_ERROR(CheckRoom(options, here));
  XFER_RETURN_IF_ERROR(PrepareForRun(context, options));

  CallCanceller calls;
  // The watch must block the signals before the session starts threads, so the session comes by
  // this pointer.
  absl::Mutex mu;
  Supervisor* supervisor = nullptr;
  absl::Status early;
  SignalWatch watch([&](int number) {
    const absl::Status reason =
        absl::CancelledError(absl::StrCat("interrupted by ", strsignal(number)));
    absl::MutexLock lock(&mu);
    early = reason;
    if (supervisor != nullptr) supervisor->Interrupt(reason);
  });
  XFER_ASSIGN_OR_RETURN(std::unique_ptr<PrivateDirectory> directory, PrivateDirectory::Create());
  Session session(context, options, std::move(here), std::move(directory), calls);
  {
    absl::MutexLock lock(&mu);
    supervisor = &session.supervisor();
    if (!early.ok()) supervisor->Interrupt(early);
  }
  const absl::Status status = session.Run();
  absl::MutexLock lock(&mu);
  supervisor = nullptr;
  return status;
}

}  // namespace xfer
