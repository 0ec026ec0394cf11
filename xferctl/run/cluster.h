// The programs of a run on this machine: coordinator, agents, emulated ranks.
#ifndef XFER_XFERCTL_RUN_CLUSTER_H_
#define XFER_XFERCTL_RUN_CLUSTER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "xferctl/run/node_ranks.h"
#include "xferctl/run/options.h"
#include "xferctl/run/supervisor.h"

namespace xfer {

// A new directory for sockets and logs, short enough for a socket's path and open to this user
// only; removed with everything in it at the end.
class PrivateDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<PrivateDirectory>> Create();
  ~PrivateDirectory();
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit PrivateDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// Used from the main thread. Its destructor leaves what still runs to the supervisor.
class Cluster {
 public:
  // `here`: the nodes of this machine. All are borrowed and outlive the cluster.
  Cluster(const RunOptions& options, const std::vector<NodeRanks>& here, Supervisor& supervisor,
          const std::string& directory)
      : options_(options), here_(here), supervisor_(supervisor), directory_(directory) {}

  // Starts the coordinator; returns its address, HOST:PORT.
  absl::StatusOr<std::string> StartCoordinator();
  // Starts an agent for each node and waits until all are connected.
  absl::Status StartAgents(const std::string& coordinator);
  // Starts a process for each node's ranks, some at a time; the last ones may still be loading and
  // registering when it returns, which WatchJob shows. started(i) is called before each.
  absl::Status StartRanks(absl::FunctionRef<void(size_t)> started);

  // Ends the ranks so that they write their dump, then the agents. The first that fails is the
  // error; all are ended all the same.
  absl::Status StopRanksAndAgents();
  absl::Status StopCoordinator();
  // Ends everything without a dump and without waiting long.
  void Abandon();

 private:
  std::string SocketOf(size_t node) const;
  std::vector<std::string> LogArgs() const;
  absl::Status WaitForRanksOf(size_t node);

  const RunOptions& options_;
  const std::vector<NodeRanks>& here_;
  Supervisor& supervisor_;
  const std::string directory_;
  std::optional<Supervisor::ChildId> coordinator_;
  std::vector<Supervisor::ChildId> agents_;
  std::vector<Supervisor::ChildId> ranks_;
};

// The address by which this machine reaches `head_ip`, and so by which it is reached from there.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& head_ip);

}  // namespace xfer

#endif  // XFER_XFERCTL_RUN_CLUSTER_H_
