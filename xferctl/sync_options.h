// How syncs are to be done: what `sync` and `run` have in common.
#ifndef XFER_XFERCTL_SYNC_OPTIONS_H_
#define XFER_XFERCTL_SYNC_OPTIONS_H_

#include <string>

#include "xfer/v1/coordinator.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace xfer {

struct SyncOptions {
  std::string mode = "p2p";
  std::string verify = "full";
  std::string transport;  // "": chosen for each pair
};

// Adds --mode, --verify and --transport.
void AddSyncOptions(CLI::App& command, SyncOptions& options);
// Sets the request's fields from options that AddSyncOptions() has checked.
void Apply(const SyncOptions& options, v1::TriggerSyncRequest& request);

}  // namespace xfer

#endif  // XFER_XFERCTL_SYNC_OPTIONS_H_
