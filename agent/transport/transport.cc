#include "agent/transport/transport.h"

namespace xfer {

absl::Status Transport::Register(const Memory&) { return absl::OkStatus(); }
void Transport::Unregister(const Memory&) {}

}  // namespace xfer
