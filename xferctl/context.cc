#include "xferctl/context.h"

#include <cstdio>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "xferctl/exit.h"

namespace xfer {
namespace {

constexpr char kDefaultCoordinator[] = "127.0.0.1:7300";
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);

}  // namespace

void Context::Print(const nlohmann::json& document) const {
  // Names come from the coordinator; one that is not UTF-8 must not end the program.
  Print(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void Context::Print(const std::string& text) const {
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
}

void Context::Say(const std::string& line) const {
  if (!json()) Print(line + "\n");
}

std::string Context::CoordinatorAddress() const {
  if (coordinator.has_value()) return *coordinator;
  const std::optional<std::string> variable = env("XFER_COORDINATOR");
  return variable.has_value() && !variable->empty() ? *variable : kDefaultCoordinator;
}

bool Context::CoordinatorGiven() const {
  return coordinator.has_value() || !env("XFER_COORDINATOR").value_or("").empty();
}

absl::StatusOr<std::unique_ptr<CoordinatorClient>> Context::Connect(
    CallCanceller* canceller) const {
  auto client = CoordinatorClient::Connect(CoordinatorAddress(), kConnectTimeout, canceller);
  if (absl::IsInvalidArgument(client.status())) {
    if (coordinator.has_value())
      return UsageError(absl::StrCat("--coordinator: ", client.status().message()));
    return UsageError(
        absl::StrCat("environment variable XFER_COORDINATOR: ", client.status().message()));
  }
  return client;
}

absl::StatusOr<std::string> Context::Job(CoordinatorClient& client) const {
  if (!job.empty()) return job;
  XFER_ASSIGN_OR_RETURN(const v1::ListJobsReply reply, client.ListJobs());
  std::vector<std::string> all, running;
  for (const v1::Job& one : reply.jobs()) {
    all.push_back(one.name());
    if (!one.finished()) running.push_back(one.name());
  }
  if (running.size() == 1) return running.front();
  if (all.size() == 1) return all.front();
  if (all.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the coordinator at ", client.address(), " has no job"));
  }
  return UsageError(absl::StrCat("which job? give --job; there are ", absl::StrJoin(all, ", ")));
}

void AddJobOption(CLI::App& command, Context& context) {
  command.add_option("--job", context.job, "Job; by default the only one that there is");
}

void SetCommand(CLI::App& command, Context& context, std::function<absl::Status()> action) {
  command.callback([&context, action = std::move(action)] {
    if (!context.command) context.command = action;  // the innermost command is called back first
  });
}

}  // namespace xfer
