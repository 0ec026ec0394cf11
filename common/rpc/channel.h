// Channels to xfer's own daemons.
#ifndef XFER_COMMON_RPC_CHANNEL_H_
#define XFER_COMMON_RPC_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace xfer {

// A channel to HOST:PORT or unix:PATH. Proxies named by the environment are ignored, messages of
// any size are taken, and a dead connection is noticed by keepalive within about 20 s. Connects
// lazily.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target);

// Waits until the channel is connected. DeadlineExceeded after `timeout`: "<what> at <target> did
// not answer within <timeout>: is it running there?".
absl::Status WaitForChannel(grpc::Channel& channel, const std::string& what,
                            const std::string& target, absl::Duration timeout);

// Sets a call's deadline. Every call has one, streams that live as long as a process excepted.
void SetDeadline(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace xfer

#endif  // XFER_COMMON_RPC_CHANNEL_H_
