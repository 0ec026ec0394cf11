// Settings of the verbs transport, as a table: name, default, meaning and parser.
#ifndef XFER_AGENT_TRANSPORT_VERBS_OPTIONS_H_
#define XFER_AGENT_TRANSPORT_VERBS_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace xfer::verbs {

// What VerbsSettings() says of each holds here too.
struct Tuning {
  std::vector<std::string> nics;
  uint64_t queue_pairs = 4;
  uint64_t chunk_bytes = 1 << 20;
  uint64_t list_requests = 16;
  uint64_t list_bytes = 4 << 20;
  uint64_t queue_requests = 128;
  uint64_t queue_bytes = 16 << 20;
  uint64_t gather_pieces = 16;
  uint64_t region_bytes = 0;
  bool relaxed_ordering = true;
  uint64_t ack_timeout = 14;
  uint64_t retries = 6;
  uint64_t traffic_class = 0;
  uint64_t service_level = 0;
  absl::Duration spin = absl::Microseconds(30);
  absl::Duration stall_timeout = absl::Seconds(30);
};

struct Setting {
  absl::string_view name;
  absl::string_view unit;     // "bytes", "", ...
  absl::string_view meaning;  // one line
  std::string (*show)(const Tuning&);
  absl::Status (*parse)(absl::string_view value, Tuning&);
};
// In the order in which they are shown.
absl::Span<const Setting> VerbsSettings();

// Sets what "name=value,name=value" says, over `tuning`, and checks the result. In `nics`, names
// are separated by "+". Sizes take KiB, MiB and GiB, times what absl::ParseDuration takes.
// InvalidArgument names the setting and what it takes.
absl::StatusOr<Tuning> ParseTuning(absl::string_view text, Tuning tuning = {});
// InvalidArgument names a setting that is out of its range.
absl::Status CheckTuning(const Tuning& tuning);

}  // namespace xfer::verbs

#endif  // XFER_AGENT_TRANSPORT_VERBS_OPTIONS_H_
