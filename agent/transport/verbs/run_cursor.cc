#include "agent/transport/verbs/run_cursor.h"

namespace xfer::verbs {

void RunCursor::Seek(uint64_t stream) {
  for (copy_ = 0; copy_ < copies_->size(); ++copy_) {
    const Copy& copy = (*copies_)[copy_];
    const uint64_t bytes = copy.bytes();
    if (stream < bytes) {
      run_ = stream / copy.run;
      runs_ = copy.runs();
      EnterRun(stream % copy.run);
      return;
    }
    stream -= bytes;
  }
  left_ = 0;
}

void RunCursor::NextRun() {
  if (++run_ == runs_) {
    run_ = 0;
    if (++copy_ == copies_->size()) return;
    runs_ = (*copies_)[copy_].runs();
  }
  EnterRun(0);
}

void RunCursor::EnterRun(uint64_t skip) {
  const Copy& copy = (*copies_)[copy_];
  offset_ = side_ == Side::kSource ? copy.source_offset : copy.destination_offset;
  uint64_t index = run_;
  for (size_t l = copy.levels.size(); l-- > 0 && index > 0;) {
    const CopyLevel& level = copy.levels[l];
    const int64_t stride = side_ == Side::kSource ? level.source_stride : level.destination_stride;
    // Negative strides ride on unsigned wrap-around, which is exact modulo 2^64.
    offset_ += index % level.count * static_cast<uint64_t>(stride);
    index /= level.count;
  }
  offset_ += skip;
  left_ = copy.run - skip;
}

}  // namespace xfer::verbs
