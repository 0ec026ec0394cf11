#include "xferctl/progress.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "xferctl/table.h"

namespace xfer {
namespace {

constexpr int kBarWidth = 30;
constexpr absl::Duration kInterval = absl::Milliseconds(100);

}  // namespace

void ProgressLine::Show(const std::string& text) {
  const absl::Time now = absl::Now();
  if (!terminal_ || now - last_ < kInterval) return;
  last_ = now;
  shown_ = true;
  fprintf(stderr, "\r\x1b[K%s", text.c_str());
  fflush(stderr);
}

void ProgressLine::Clear() {
  if (!shown_) return;
  shown_ = false;
  last_ = absl::InfinitePast();
  fputs("\r\x1b[K", stderr);
  fflush(stderr);
}

std::string ProgressBar(uint64_t done, uint64_t total, absl::string_view label) {
  const double share =
      total == 0 ? 0.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(share * kBarWidth);
  return absl::StrFormat("[%s%s] %3d%%  %s of %s  %s", std::string(filled, '#'),
                         std::string(kBarWidth - filled, '.'), static_cast<int>(share * 100),
                         HumanBytes(done), HumanBytes(total), label);
}

}  // namespace xfer
