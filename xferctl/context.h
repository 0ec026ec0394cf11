// What every subcommand needs: where the coordinator is, and how to say things.
#ifndef XFER_XFERCTL_CONTEXT_H_
#define XFER_XFERCTL_CONTEXT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/coordinator_client.h"
#include "nlohmann/json_fwd.hpp"
#include "xferctl/environment.h"
#include "xferctl/table.h"

// Parsers and documents take long to compile; most files need only their names.
namespace CLI {
class App;
}  // namespace CLI

namespace xfer {

// Filled by the command line, then read. Used from the main thread only.
struct Context {
  std::string output = "table";            // or "json"
  std::optional<std::string> coordinator;  // --coordinator
  std::optional<std::string> log_dir;      // --log-dir
  std::string job;                         // --job
  GetEnv env = ProcessEnv;
  bool stdout_is_terminal = false;
  bool stderr_is_terminal = false;
  // The subcommand that was given; set while the command line is parsed, called once afterwards.
  std::function<absl::Status()> command;

  bool json() const { return output == "json"; }
  bool colours() const { return stdout_is_terminal; }

  // Prints a document or, for people, text that ends its own lines.
  void Print(const nlohmann::json& document) const;
  void Print(const std::string& text) const;
  void Print(const Table& table) const { Print(table.ToString(colours())); }
  // A line for people about what is being done: stdout, or nothing where the output is JSON.
  void Say(const std::string& line) const;

  // --coordinator, XFER_COORDINATOR, or 127.0.0.1:7300.
  std::string CoordinatorAddress() const;
  bool CoordinatorGiven() const;
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> Connect(
      CallCanceller* canceller = nullptr) const;
  // --job, or the only unfinished job there is, or the only one. Usage error where that is not one.
  absl::StatusOr<std::string> Job(CoordinatorClient& client) const;
};

// Adds --job; for subcommands about one job.
void AddJobOption(CLI::App& command, Context& context);

// Makes `action` what the program does once this command has been parsed. Of nested commands the
// innermost is the one that was meant.
void SetCommand(CLI::App& command, Context& context, std::function<absl::Status()> action);

// The same for an action whose options live in `options`, which is kept.
template <typename Options>
void SetAction(CLI::App& command, Context& context, std::shared_ptr<Options> options,
               absl::Status (*run)(Context&, const Options&)) {
  SetCommand(command, context,
             [&context, options = std::move(options), run] { return run(context, *options); });
}

}  // namespace xfer

#endif  // XFER_XFERCTL_CONTEXT_H_
