// `local`: source and destination are memory of this very agent; a copy by the calling threads'
// helpers.
#ifndef XFER_AGENT_TRANSPORT_LOCAL_H_
#define XFER_AGENT_TRANSPORT_LOCAL_H_

#include <memory>

#include "agent/transport/transport.h"

namespace xfer {

struct LocalOptions {
  int threads = 0;  // copying threads of the whole transport; 0: one for each core, at most 8
  ReceiveTable* table = nullptr;  // borrowed; outlives the transport
};
std::unique_ptr<Transport> MakeLocalTransport(const LocalOptions& options);

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_LOCAL_H_
