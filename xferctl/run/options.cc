#include "xferctl/run/options.h"

#include <arpa/inet.h>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "xferctl/exit.h"

namespace xfer {
namespace {

constexpr double kLargestBucketGb = 1'024;

bool IsIpAddress(const std::string& text) {
  in6_addr address = {};
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

bool IsLoopback(const std::string& ip) { return absl::StartsWith(ip, "127.") || ip == "::1"; }

absl::Status ResolveMachines(const RunFlags& flags, RunOptions& options) {
  options.nodes = flags.nodes;
  options.node_rank = flags.node_rank;
  options.insecure = flags.insecure;
  options.nics = flags.nics;
  if (!flags.node_rank.has_value()) {
    if (flags.head_ip.empty()) return absl::OkStatus();
    return UsageError(
        "--head-ip is for a run over several machines: give --node-rank, too (0 on the head)");
  }
  const int32_t nodes = flags.nodes > 0 ? flags.nodes : options.spec.nodes;
  if (*flags.node_rank >= nodes) {
    return UsageError(absl::StrCat("--node-rank is ", *flags.node_rank, ", but the run has ", nodes,
                                   " nodes (0 to ", nodes - 1, "): give --nodes"));
  }
  options.port = flags.port;
  if (flags.head_ip.empty()) {
    if (*flags.node_rank == 0 && nodes == 1) return absl::OkStatus();
    return UsageError(
        "a run over several machines needs --head-ip: the address of the machine with --node-rank "
        "0");
  }
  if (!IsIpAddress(flags.head_ip)) {
    return UsageError(
        absl::StrCat("--head-ip is \"", flags.head_ip, "\"; it must be an IPv4 or IPv6 address"));
  }
  if (!IsLoopback(flags.head_ip) && !flags.insecure) {
    return UsageError(absl::StrCat("--head-ip ", flags.head_ip,
                                   " is not a loopback address, and there is no TLS yet: "
                                   "add --insecure where everyone on that network may be trusted"));
  }
  options.head_ip = flags.head_ip;
  return absl::OkStatus();
}

}  // namespace

std::string RunOptions::head_address() const {
  if (absl::StrContains(head_ip, ":")) return absl::StrCat("[", head_ip, "]:", port);
  return absl::StrCat(head_ip, ":", port);
}

void AddRunFlags(CLI::App& command, RunFlags& flags) {
  AddModelOptions(command, flags.model);
  AddSyncOptions(command, flags.sync);
  command.add_option("--steps", flags.steps, "How many syncs, each with new weights")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_option("--bucket-size-gb", flags.bucket_size_gb,
                     "Size of a bucket (else BUCKET_SIZE_GB, else the model's)");
  command.add_option("--ckpt-dir", flags.ckpt_dir,
                     "Where the model is prepared (else CKPT_SAVE_DIR, else ./ckpt)");
  command.add_option("--dump-dir", flags.dump_dir, "Write what every rank holds at the end there");
  // A flag bound to an optional would be set where it is not given.
  command.add_flag_function(
      "--skip-validation", [&flags](std::int64_t count) { flags.skip_validation = count > 0; },
      "Do not compare the engines' weights with the checkpoint (else SKIP_VALIDATION=1)");
  command
      .add_option("--nodes", flags.nodes,
                  "Nodes to spread the ranks over; by default the profile's")
      ->check(CLI::Range(1, 100'000));
  command
      .add_option(
          "--node-rank", flags.node_rank,
          "This machine is node R of several (0: the head); without it all nodes are emulated here")
      ->check(CLI::Range(0, 100'000));
  command.add_option("--head-ip", flags.head_ip, "Address of the head, for --node-rank");
  command.add_option("--port", flags.port, "The head's port, for --node-rank")
      ->check(CLI::Range(1, 65'535))
      ->capture_default_str();
  command.add_flag("--insecure", flags.insecure,
                   "Allow addresses other than loopback, without TLS");
  command.add_option("--nics", flags.nics,
                     "RDMA devices or ports of the agents, e.g. mlx5_0,mlx5_1:1 (else all that "
                     "are active)");
  command
      .add_option("--deadline", flags.deadline_s,
                  "Seconds for each part of the run (registration, a sync, a check); by default "
                  "the model's")
      ->check(CLI::Range(0.1, 86'400.0));
  command.add_option("--seed", flags.seed, "Seed of made-up weights")->capture_default_str();
}

absl::StatusOr<RunOptions> ResolveRunOptions(const Context& context, const RunFlags& flags) {
  RunOptions options;
  XFER_ASSIGN_OR_RETURN(options.spec, ChooseModel(flags.model));
  options.job_spec = options.spec;
  XFER_ASSIGN_OR_RETURN(const std::optional<double> bucket,
                        PositiveSetting(flags.bucket_size_gb, "--bucket-size-gb", "BUCKET_SIZE_GB",
                                        kLargestBucketGb, context.env));
  if (bucket.has_value()) {
    options.job_spec.buffer_size_gb = *bucket;
    options.job_spec.buffer_size_broadcast_gb.reset();
  }
  options.name = ChoiceName(options.spec.name, flags.model);
  options.tiny = flags.model.tiny;
  XFER_ASSIGN_OR_RETURN(const std::string root,
                        StringSetting(flags.ckpt_dir, "CKPT_SAVE_DIR", "./ckpt", context.env));
  options.prepared_dir = absl::StrCat(root, "/", options.name);
  XFER_ASSIGN_OR_RETURN(const bool skip,
                        BoolSetting(flags.skip_validation, "SKIP_VALIDATION", false, context.env));
  options.validate = !skip;
  XFER_ASSIGN_OR_RETURN(options.log_dir,
                        StringSetting(context.log_dir, "XFER_LOG_DIR", "", context.env));
  options.sync = flags.sync;
  options.steps = flags.steps;
  options.dump_dir = flags.dump_dir;
  options.seed = flags.seed;
  options.deadline = flags.deadline_s > 0 ? absl::Seconds(flags.deadline_s)
                                          : absl::Seconds(options.spec.transfer_timeout_s);
  XFER_RETURN_IF_ERROR(ResolveMachines(flags, options));
  return options;
}

}  // namespace xfer
