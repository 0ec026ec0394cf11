#include "xferctl/sync_options.h"

#include "CLI/CLI.hpp"

namespace xfer {

void AddSyncOptions(CLI::App& command, SyncOptions& options) {
  command.add_option("--mode", options.mode, "How the bytes go")
      ->check(CLI::IsMember({"p2p", "broadcast"}))
      ->capture_default_str();
  command.add_option("--verify", options.verify, "How much is compared by digest")
      ->check(CLI::IsMember({"full", "sample", "none"}))
      ->capture_default_str();
  command
      .add_option("--transport", options.transport,
                  "Use only this one; by default the best for each pair")
      ->check(CLI::IsMember({"local", "verbs", "tcp"}));
}

void Apply(const SyncOptions& options, v1::TriggerSyncRequest& request) {
  request.set_mode(options.mode == "broadcast" ? v1::MODE_BROADCAST : v1::MODE_P2P);
  request.set_verify(options.verify == "none"     ? v1::VERIFY_NONE
                     : options.verify == "sample" ? v1::VERIFY_SAMPLE
                                                  : v1::VERIFY_FULL);
  request.set_transport(options.transport);
}

}  // namespace xfer
