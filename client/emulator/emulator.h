// All ranks of one emulator process, from start to end.
#ifndef XFER_CLIENT_EMULATOR_EMULATOR_H_
#define XFER_CLIENT_EMULATOR_EMULATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/emulator/emulated_rank.h"
#include "client/rank_client.h"

namespace xfer {

struct EmulatorOptions {
  std::string agent_socket;
  std::string job;
  std::string prepared;  // directory that `xferctl prepare` made
  std::vector<RankId> ranks;
  int64_t last_version = 1;
  bool check = true;
  uint64_t seed = 0;
  int threads = 0;  // of loading, stepping and checking; 0: one a core, at most 4
  absl::Duration register_timeout = absl::Minutes(2);
  // On a thread of the library, perhaps more than once: a rank has lost its agent or cannot go on.
  std::function<void(const absl::Status&)> on_lost;
};

// Not thread-safe.
class Emulator {
 public:
  // Loads and registers all ranks; on failure those that were registered have left again.
  static absl::StatusOr<std::unique_ptr<Emulator>> Start(const EmulatorOptions& options);
  // Leaves quickly: work that has not begun is dropped.
  ~Emulator();

  // Takes all ranks out, lets the steps and checks that were begun end, and, with a directory,
  // writes what every rank holds.
  absl::Status Finish(const std::string& dump_dir);

 private:
  Emulator() = default;
  void Leave();

  EmulatorContext context_;
  std::unique_ptr<WorkPool> pool_;
  std::unique_ptr<RankClient> client_;
  std::vector<std::unique_ptr<EmulatedRank>> ranks_;
};

}  // namespace xfer

#endif  // XFER_CLIENT_EMULATOR_EMULATOR_H_
