// Walks one side of a list of copies, run by run, so that it can stop and go on anywhere.
#ifndef XFER_AGENT_TRANSPORT_VERBS_RUN_CURSOR_H_
#define XFER_AGENT_TRANSPORT_VERBS_RUN_CURSOR_H_

#include <cstdint>
#include <vector>

#include "agent/transport/runs.h"
#include "common/plan/plan.h"

namespace xfer::verbs {

// Borrows the copies. Not thread-safe. The copies were checked: non-empty runs and counts, no
// wrap-around.
class RunCursor {
 public:
  RunCursor(const std::vector<Copy>& copies, Side side) : copies_(&copies), side_(side) {}

  // To a byte of the stream; O(copies). `stream` is less than the copies' bytes.
  void Seek(uint64_t stream);
  // Where the present byte lies in its region, and how many bytes of its run are left (0: at the
  // end).
  uint64_t offset() const { return offset_; }
  uint64_t left() const { return left_; }
  // At most left().
  void Advance(uint64_t bytes) {
    offset_ += bytes;
    left_ -= bytes;
    if (left_ == 0) NextRun();
  }

 private:
  void NextRun();
  void EnterRun(uint64_t skip);

  const std::vector<Copy>* copies_;
  Side side_;
  size_t copy_ = 0;
  uint64_t run_ = 0;   // of the copy
  uint64_t runs_ = 0;  // the copy has
  uint64_t offset_ = 0;
  uint64_t left_ = 0;
};

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_RUN_CURSOR_H_
