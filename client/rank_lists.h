// Lists of ranks and engines as written on a command line.
#ifndef XFER_CLIENT_RANK_LISTS_H_
#define XFER_CLIENT_RANK_LISTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/plan/plan.h"

namespace xfer {

// "0-3,7" -> 0 1 2 3 7, sorted. Empty text: empty list. InvalidArgument names the part that is not
// a number or a range, a number over a million, or one that stands twice.
absl::StatusOr<std::vector<int32_t>> ParseNumberList(absl::string_view text);

// "0:0-1,1:0" -> engine 0 ranks 0 and 1, engine 1 rank 0. A part without "ENGINE:" belongs to the
// engine before it. Errors as above.
absl::StatusOr<std::vector<RankId>> ParseRolloutList(absl::string_view text);

// The inverses; runs become ranges.
std::string FormatNumberList(absl::Span<const int32_t> numbers);
std::string FormatRolloutList(absl::Span<const RankId> ranks);

}  // namespace xfer

#endif  // XFER_CLIENT_RANK_LISTS_H_
