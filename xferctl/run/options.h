// What `xferctl run` was asked for, after flags, environment and defaults.
#ifndef XFER_XFERCTL_RUN_OPTIONS_H_
#define XFER_XFERCTL_RUN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model.h"
#include "xferctl/context.h"
#include "xferctl/model_choice.h"
#include "xferctl/sync_options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace xfer {

// As given on the command line.
struct RunFlags {
  ModelOptions model;
  SyncOptions sync;
  int32_t steps = 3;
  std::optional<double> bucket_size_gb;
  std::optional<std::string> ckpt_dir;
  std::string dump_dir;
  std::optional<bool> skip_validation;
  int32_t nodes = 0;
  std::optional<int32_t> node_rank;
  std::string head_ip;
  int32_t port = 7300;
  bool insecure = false;
  std::string nics;
  double deadline_s = 0;
  uint64_t seed = 0;
};

void AddRunFlags(CLI::App& command, RunFlags& flags);

struct RunOptions {
  ModelSpec spec;      // as it is prepared
  ModelSpec job_spec;  // the same with this run's bucket size
  std::string name;    // of the job and of the prepared directory
  bool tiny = false;
  std::string prepared_dir;
  SyncOptions sync;
  int32_t steps = 3;
  std::string dump_dir;  // "": none
  bool validate = true;
  int32_t nodes = 0;                 // 0: the profile's
  std::optional<int32_t> node_rank;  // set: this machine is that node of several machines
  std::string head_ip = "127.0.0.1";
  int32_t port = 0;  // of the coordinator; 0: any
  bool insecure = false;
  std::string nics;         // of the agents; "": they choose
  absl::Duration deadline;  // for each part of the run: registration, a sync, a check
  uint64_t seed = 0;
  std::string log_dir;  // "": none

  bool is_head() const { return node_rank.value_or(0) == 0; }
  std::string head_address() const;  // HOST:PORT
};

// Usage errors name the flag or variable, its value and what is accepted.
absl::StatusOr<RunOptions> ResolveRunOptions(const Context& context, const RunFlags& flags);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_OPTIONS_H_
