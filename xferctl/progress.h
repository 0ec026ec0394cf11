// One line on a terminal that is written over until it is done.
#ifndef XFER_XFERCTL_PROGRESS_H_
#define XFER_XFERCTL_PROGRESS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace xfer {

// Writes to stderr, and only where that is a terminal. Not thread-safe.
class ProgressLine {
 public:
  explicit ProgressLine(bool terminal) : terminal_(terminal) {}
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // At most some times a second are shown.
  void Show(const std::string& text);
  // Removes the line, so that other output may come.
  void Clear();

 private:
  const bool terminal_;
  bool shown_ = false;
  absl::Time last_ = absl::InfinitePast();
};

// "[#####.....]  50%  1.2 GB of 2.4 GB  label"
std::string ProgressBar(uint64_t done, uint64_t total, absl::string_view label);

}  // namespace xfer

#endif  // XFER_XFERCTL_PROGRESS_H_
