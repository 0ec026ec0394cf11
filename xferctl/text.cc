#include "xferctl/text.h"

#include "absl/strings/str_cat.h"
#include "xferctl/proto_json.h"

namespace xfer {

std::string Text(const v1::RankId& id) {
  if (id.role() == v1::ROLE_ROLLOUT)
    return absl::StrCat("engine ", id.engine(), " rank ", id.rank());
  return absl::StrCat("trainer ", id.rank());
}

std::string Text(v1::Phase phase) { return EnumText(*v1::Phase_descriptor(), phase); }
std::string Text(v1::Mode mode) { return EnumText(*v1::Mode_descriptor(), mode); }
std::string Text(v1::Verify verify) { return EnumText(*v1::Verify_descriptor(), verify); }

Cell Text(v1::SyncState state) {
  const Colour colour = state == v1::SYNC_STATE_DONE      ? Colour::kGood
                        : state == v1::SYNC_STATE_RUNNING ? Colour::kNone
                                                          : Colour::kBad;
  return {EnumText(*v1::SyncState_descriptor(), state), colour};
}

Cell Text(v1::NodeState state) {
  return {EnumText(*v1::NodeState_descriptor(), state),
          state == v1::NODE_STATE_ALIVE ? Colour::kGood : Colour::kBad};
}

bool Ended(const v1::Sync& sync) {
  return sync.state() != v1::SYNC_STATE_RUNNING && sync.state() != v1::SYNC_STATE_UNSPECIFIED;
}

}  // namespace xfer
