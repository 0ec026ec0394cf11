// xfer-agent: the daemon of a node.
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/service/agent.h"
#include "common/base/logging.h"
#include "common/base/process.h"

namespace xfer {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

struct Flags {
  AgentOptions agent;
  uint64_t chunk_kib = 1024;
  std::string log_dir;
  std::string log_level = "info";
  int ready_fd = -1;
};

std::string HostName() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

void AddFlags(CLI::App& app, Flags& flags) {
  AgentOptions& agent = flags.agent;
  agent.node = HostName();
  app.add_option("--coordinator", agent.coordinator, "HOST:PORT of the coordinator")
      ->envname("XFER_COORDINATOR")
      ->required();
  app.add_option("--node", agent.node, "Name of this node, unique in the cluster")
      ->capture_default_str();
  app.add_option("--socket", agent.socket, "Unix socket for the processes of this node")
      ->capture_default_str();
  app.add_option("--listen", agent.listen, "HOST:PORT of the service for other agents")
      ->capture_default_str();
  app.add_option("--data-listen", agent.data_listen,
                 "HOST:PORT of the data port (default: the host of --listen, any port)");
  app.add_option("--advertise", agent.advertise,
                 "Host by which other agents reach this node (default: the host of --listen)");
  app.add_option("--transport", agent.transport,
                 "Transports, e.g. local,verbs or tcp alone; auto: local, tcp, and verbs where "
                 "there is an RDMA device")
      ->capture_default_str();
  app.add_option("--nics", agent.nics,
                 "RDMA devices or ports, e.g. mlx5_0,mlx5_1:1 (default: all active ports); or a "
                 "number: how many network devices tcp's data goes over");
  app.add_flag("--insecure", agent.insecure,
               "Allow addresses beyond loopback; anyone who reaches them can write weights");
  app.add_option("--tcp-streams", agent.tcp_streams, "TCP connections to each peer")
      ->capture_default_str();
  app.add_option("--threads", agent.threads, "Sending threads (0: by the number of cores)")
      ->capture_default_str();
  app.add_option("--chunk-kib", flags.chunk_kib, "Size of the chunks that are sent, KiB")
      ->capture_default_str();
  app.add_option("--log-dir", flags.log_dir, "Directory for a log file (default: none)")
      ->envname("XFER_LOG_DIR");
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.add_option("--ready-fd", flags.ready_fd,
                 "Descriptor to write \"ready PEER_ADDRESS DATA_ADDRESS\" to once all sockets "
                 "listen; it is closed then");
}

int Fail(int code, const absl::Status& status) {
  fprintf(stderr, "xfer-agent: %s\n", std::string(status.message()).c_str());
  return code;
}

int Run(const Flags& flags, const EndSignals& signals) {
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Start(flags.agent);
  if (!agent.ok()) {
    spdlog::error("{}", std::string(agent.status().message()));
    return kExitFailure;
  }
  spdlog::info("agent of node {}: socket {}, peers at {}, data at {}, coordinator {}",
               flags.agent.node, flags.agent.socket, (*agent)->peer_address(),
               (*agent)->data_address().empty() ? "none" : (*agent)->data_address(),
               flags.agent.coordinator);
  TellReady(flags.ready_fd,
            absl::StrCat("ready ", (*agent)->peer_address(), " ", (*agent)->data_address()));
  (*agent)->Stop(absl::StrCat("signal ", signals.Wait()));
  return 0;
}

int Main(int argc, char** argv) {
  InitProcess();
  CLI::App app(
      "Agent of an xfer node: registers the memory of its training and rollout "
      "processes and moves weights between them.");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  flags.agent.chunk_bytes = flags.chunk_kib * 1024;
  if (absl::Status status = CheckAgentOptions(flags.agent); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  LogOptions log;
  log.process = absl::StrCat("agent-", flags.agent.node);
  log.directory = flags.log_dir;
  log.level = flags.log_level;
  if (absl::Status status = InitLogging(log); !status.ok()) return Fail(kExitUsage, status);

  // Files that others could write to would let them in; the sockets set their own mode.
  umask(umask(0) | 007);
  const EndSignals signals;
  return Run(flags, signals);
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) { return xfer::Main(argc, argv); }
