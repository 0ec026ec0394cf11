#include "xferctl/run/cluster.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/rank_lists.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace xfer {
namespace {

constexpr absl::Duration kAbandonPatience = absl::Seconds(3);
constexpr absl::Duration kStopPatience = absl::Seconds(10);
// A dump is synced to disk; take a slow one for granted.
constexpr absl::Duration kDumpPatience = absl::Minutes(10);
// A socket's path has at most 107 bytes; "/agent-99999.sock.fd" stands behind the directory's.
constexpr size_t kLongestDirectory = 80;

std::string WithPort(const std::string& ip, int32_t port) {
  if (absl::StrContains(ip, ":")) return absl::StrCat("[", ip, "]:", port);
  return absl::StrCat(ip, ":", port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrivateDirectory>> PrivateDirectory::Create() {
  std::error_code error;
  std::string base = std::filesystem::temp_directory_path(error).string();
  if (error || base.size() + sizeof("/xferctl-XXXXXX") > kLongestDirectory) base = "/tmp";
  std::string path = base + "/xferctl-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make a directory in ", base, ": ", strerror(errno)));
  }
  return std::unique_ptr<PrivateDirectory>(new PrivateDirectory(std::move(path)));
}

PrivateDirectory::~PrivateDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::string> LocalAddressTowards(const std::string& head_ip) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(head_ip.c_str(), "1", &hints, &found) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(head_ip, " is not an IP address"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> target(found, &freeaddrinfo);
  // Connecting a datagram socket sends nothing; it only asks the kernel for the route.
  const UniqueFd probe(socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  if (!probe.valid() || connect(probe.get(), target->ai_addr, target->ai_addrlen) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("there is no way to ", head_ip, " from here: ", strerror(errno)));
  }
  std::string text(NI_MAXHOST, '\0');
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text.data(), text.size(),
                  nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::InternalError("getnameinfo failed for a local address");
  }
  text.resize(strlen(text.c_str()));
  return text;
}

std::string Cluster::SocketOf(size_t node) const {
  return absl::StrCat(directory_, "/agent-", node, ".sock");
}

std::vector<std::string> Cluster::LogArgs() const {
  if (options_.log_dir.empty()) return {};
  return {"--log-dir", options_.log_dir};
}

absl::StatusOr<std::string> Cluster::StartCoordinator() {
  std::vector<std::string> args = {"--listen", WithPort(options_.head_ip, options_.port)};
  if (options_.insecure) args.push_back("--insecure");
  // Nodes that are emulated here compete for few cores while they start, and may be silent for
  // long; that one has died is seen by its process's end.
  if (!options_.node_rank.has_value()) args.insert(args.end(), {"--lease-ms", "60000"});
  for (std::string& arg : LogArgs()) args.push_back(std::move(arg));
  XFER_ASSIGN_OR_RETURN(coordinator_,
                        supervisor_.Start({"xfer-coordinator", "xfer-coordinator", args}));
  XFER_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                        supervisor_.WaitReady(*coordinator_, absl::Now() + options_.deadline));
  if (words.empty())
    return absl::InternalError(
        "xfer-coordinator did not say its address: is it of another version?");
  return words.front();
}

absl::Status Cluster::StartAgents(const std::string& coordinator) {
  std::string ip = options_.head_ip;
  if (!options_.is_head()) {
    XFER_ASSIGN_OR_RETURN(ip, LocalAddressTowards(options_.head_ip));
  }
  for (size_t i = 0; i < here_.size(); ++i) {
    std::vector<std::string> args = {"--coordinator", coordinator, "--node",   here_[i].node,
                                     "--socket",      SocketOf(i), "--listen", WithPort(ip, 0)};
    if (options_.insecure) args.push_back("--insecure");
    // So the others are not even there.
    if (!options_.sync.transport.empty()) {
      args.insert(args.end(), {"--transport", options_.sync.transport});
    }
    if (!options_.nics.empty()) args.insert(args.end(), {"--nics", options_.nics});
    for (std::string& arg : LogArgs()) args.push_back(std::move(arg));
    XFER_ASSIGN_OR_RETURN(
        const Supervisor::ChildId agent,
        supervisor_.Start({absl::StrCat("xfer-agent ", here_[i].node), "xfer-agent", args}));
    agents_.push_back(agent);
  }
  const absl::Time deadline = absl::Now() + options_.deadline;
  for (const Supervisor::ChildId agent : agents_) {
    XFER_RETURN_IF_ERROR(supervisor_.WaitReady(agent, deadline).status());
  }
  return absl::OkStatus();
}

absl::Status Cluster::StartRanks(absl::FunctionRef<void(size_t)> started) {
  const int cores = std::max<int>(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = std::clamp(cores / static_cast<int>(here_.size()), 1, 8);
  // Loading takes a core and memory of its own, so that starting all at once would be slower, not
  // faster.
  const size_t at_once = std::max<size_t>(4, 2 * static_cast<size_t>(cores));
  for (size_t i = 0; i < here_.size(); ++i) {
    if (i >= at_once) XFER_RETURN_IF_ERROR(WaitForRanksOf(i - at_once));
    started(i);
    std::vector<std::string> args = {"--agent-socket",
                                     SocketOf(i),
                                     "--job",
                                     options_.name,
                                     "--prepared",
                                     options_.prepared_dir,
                                     "--last-version",
                                     absl::StrCat(options_.steps),
                                     "--check",
                                     options_.validate ? "full" : "none",
                                     "--seed",
                                     absl::StrCat(options_.seed),
                                     "--threads",
                                     absl::StrCat(threads),
                                     "--register-timeout",
                                     absl::StrCat(absl::ToDoubleSeconds(options_.deadline))};
    const auto add = [&args](const char* flag, const std::string& value) {
      if (!value.empty()) args.insert(args.end(), {flag, value});
    };
    add("--trainers", FormatNumberList(here_[i].trainers));
    add("--rollout", FormatRolloutList(here_[i].rollout));
    add("--dump-dir", options_.dump_dir);
    add("--log-dir", options_.log_dir);
    XFER_ASSIGN_OR_RETURN(
        const Supervisor::ChildId ranks,
        supervisor_.Start({absl::StrCat("xfer-rank ", here_[i].node), "xfer-rank", args}));
    ranks_.push_back(ranks);
  }
  return absl::OkStatus();
}

absl::Status Cluster::WaitForRanksOf(size_t node) {
  return supervisor_.WaitReady(ranks_[node], absl::Now() + options_.deadline).status();
}

absl::Status Cluster::StopRanksAndAgents() {
  const absl::Duration patience = options_.dump_dir.empty() ? kStopPatience : kDumpPatience;
  const absl::Status ranks = supervisor_.Stop(std::exchange(ranks_, {}), SIGTERM, patience);
  const absl::Status agents = supervisor_.Stop(std::exchange(agents_, {}), SIGTERM, kStopPatience);
  return ranks.ok() ? agents : ranks;
}

absl::Status Cluster::StopCoordinator() {
  if (!coordinator_.has_value()) return absl::OkStatus();
  const Supervisor::ChildId coordinator = *std::exchange(coordinator_, std::nullopt);
  return supervisor_.Stop({coordinator}, SIGTERM, kStopPatience);
}

void Cluster::Abandon() {
  // How they end says nothing: they are ended because something else went wrong.
  (void)supervisor_.Stop(std::exchange(ranks_, {}), SIGINT, kAbandonPatience);
  (void)supervisor_.Stop(std::exchange(agents_, {}), SIGTERM, kAbandonPatience);
  if (coordinator_.has_value()) (void)supervisor_.Stop({*coordinator_}, SIGTERM, kAbandonPatience);
  coordinator_.reset();
}

}  // namespace xfer
