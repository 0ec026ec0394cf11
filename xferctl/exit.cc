#include "xferctl/exit.h"

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/coordinator_client.h"

namespace xfer {
namespace {

constexpr absl::string_view kUsagePayload = "xfer/usage";

}  // namespace

absl::Status UsageError(absl::string_view message) {
  return AsUsageError(absl::InvalidArgumentError(message));
}

absl::Status AsUsageError(const absl::Status& status) {
  absl::Status marked = status;
  marked.SetPayload(kUsagePayload, absl::Cord("1"));
  return marked;
}

absl::Status InContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status longer(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&longer](absl::string_view url, const absl::Cord& payload) {
    longer.SetPayload(url, payload);
  });
  return longer;
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  if (status.GetPayload(kUsagePayload).has_value()) return kExitUsage;
  return IsUnreachable(status) ? kExitUnreachable : kExitFailed;
}

std::string OneLine(const absl::Status& status) {
  std::string text(absl::StripAsciiWhitespace(status.message()));
  if (text.empty()) text = absl::StatusCodeToString(status.code());
  return absl::StrReplaceAll(text, {{"\r", ""}, {"\n", " "}});
}

}  // namespace xfer
