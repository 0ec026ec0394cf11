#include "coordinator/registry/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/plain_name.h"

namespace xfer {
namespace {
constexpr size_t kMaxHost = 255;
}  // namespace

std::string Shorten(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  return absl::StrCat(text.substr(0, bytes), "...");
}

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (IsPlainName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", what, " \"", absl::CHexEscape(Shorten(name, kMaxPlainName)),
                   "\" is not 1 to 64 letters, digits, '.', '_' and '-'"));
}

absl::Status CheckHostPort(absl::string_view what, absl::string_view address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  const bool good = colon != absl::string_view::npos && colon > 0 && colon <= kMaxHost &&
                    absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 &&
                    port <= 65535 &&
                    std::all_of(address.begin(), address.end(),
                                [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", what, " \"", absl::CHexEscape(Shorten(address, kMaxHost)),
                   "\" is not HOST:PORT with a port from 1 to 65535"));
}

}  // namespace xfer
