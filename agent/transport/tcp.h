// `tcp`: several streams a peer, straight from the source's memory and straight into the
// destination's, acknowledged when the receiver has applied and checked.
#ifndef XFER_AGENT_TRANSPORT_TCP_H_
#define XFER_AGENT_TRANSPORT_TCP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "agent/transport/transport.h"

namespace xfer {

struct TcpOptions {
  std::string listen_address = "127.0.0.1:0";  // HOST:PORT, port 0: any free one
  std::string node;                            // own name, for messages
  uint64_t incarnation = 0;                    // own; a hello for another one is refused
  int streams = 4;                             // connections a peer
  int io_threads = 0;                          // 0: as many as cores, at most 4
  absl::Duration stall_timeout =
      absl::Seconds(30);  // a frame that makes no progress for so long fails
  uint64_t chunk_bytes =
      1 << 20;  // of a range on one stream; a multiple of kDigestLeafBytes, at most 16 MiB
  int max_connections = 8192;     // accepted and open at a time; more are closed at once
  ReceiveTable* table = nullptr;  // borrowed; outlives the transport
};

class TcpTransport : public Transport {
 public:
  // The port really bound.
  virtual uint16_t port() const = 0;
};

// AlreadyExists where the port is taken (it names the address); InvalidArgument for a bad address.
absl::StatusOr<std::unique_ptr<TcpTransport>> MakeTcpTransport(const TcpOptions& options);

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_TCP_H_
