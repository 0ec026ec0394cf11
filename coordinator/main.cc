// xfer-coordinator: the daemon.
#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/process.h"
#include "coordinator/coordinator.h"

namespace xfer {
namespace {

constexpr absl::Duration kEndGrace = absl::Seconds(2);

struct Flags {
  std::string listen = "127.0.0.1:7300";
  bool insecure = false;
  int64_t lease_ms = 5000;
  int64_t heartbeat_ms = 1000;
  std::string state;
  std::string log_dir;
  std::string log_level = "info";
  int ready_fd = -1;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen, "HOST:PORT to listen on; port 0: any free one")
      ->capture_default_str();
  app.add_flag("--insecure", flags.insecure,
               "Allow an address that is not a loopback one, without TLS");
  app.add_option("--lease-ms", flags.lease_ms, "A node that is silent for longer is lost")
      ->capture_default_str()
      ->check(CLI::Range(50, 3'600'000));
  app.add_option("--heartbeat-ms", flags.heartbeat_ms, "How often agents send a heartbeat")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'800'000));
  app.add_option(
         "--state", flags.state,
         "File for jobs, versions and syncs, so that a restart loses nothing (default: none, "
         "they end with the process)")
      ->envname("XFER_STATE");
  app.add_option("--log-dir", flags.log_dir, "Directory for a log file beside stderr")
      ->envname("XFER_LOG_DIR");
  app.add_option("--log-level", flags.log_level, "What to log")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  app.add_option("--ready-fd", flags.ready_fd,
                 "Write \"ready HOST:PORT\" to this descriptor once listening, and close it")
      ->check(CLI::NonNegativeNumber);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "xfer-coordinator: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

// What gRPC has to say is for those who look for it; failures are told once, by the status.
void LogOfGrpc(gpr_log_func_args* args) {
  spdlog::debug("grpc: {}:{}: {}", args->file, args->line, args->message);
}

int Run(const Flags& flags) {
  LogOptions log;
  log.process = "coordinator";
  log.directory = flags.log_dir;
  log.level = flags.log_level;
  if (absl::Status status = InitLogging(log); !status.ok()) return Fail(status);

  gpr_set_log_function(LogOfGrpc);

  const EndSignals signals;
  Coordinator::Options options;
  options.listen = flags.listen;
  options.insecure = flags.insecure;
  options.lease = absl::Milliseconds(flags.lease_ms);
  options.heartbeat = absl::Milliseconds(flags.heartbeat_ms);
  options.state = flags.state;
  absl::StatusOr<std::unique_ptr<Coordinator>> coordinator = Coordinator::Start(options);
  if (!coordinator.ok()) return Fail(coordinator.status());

  const std::string address =
      absl::StrCat(flags.listen.substr(0, flags.listen.rfind(':')), ":", (*coordinator)->port());
  spdlog::info("listening on {}", address);
  TellReady(flags.ready_fd, absl::StrCat("ready ", address));
  spdlog::info("got signal {}", signals.Wait());
  (*coordinator)->Shutdown(kEndGrace);
  return 0;
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) {
  xfer::InitProcess();
  CLI::App app("The xfer coordinator: model registry, membership, plans and syncs of a cluster.",
               "xfer-coordinator");
  xfer::Flags flags;
  xfer::AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return xfer::Run(flags);
}
