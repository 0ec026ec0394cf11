// The API's messages in words.
#ifndef XFER_XFERCTL_TEXT_H_
#define XFER_XFERCTL_TEXT_H_

#include <string>

#include "xfer/v1/coordinator.pb.h"
#include "xferctl/table.h"

namespace xfer {

std::string Text(const v1::RankId& id);  // "trainer 3", "engine 1 rank 0"
std::string Text(v1::Phase phase);       // "transfer"
std::string Text(v1::Mode mode);         // "p2p"
std::string Text(v1::Verify verify);     // "full"
Cell Text(v1::SyncState state);          // coloured
Cell Text(v1::NodeState state);

// Whether a sync has ended.
bool Ended(const v1::Sync& sync);

}  // namespace xfer

#endif  // XFER_XFERCTL_TEXT_H_
