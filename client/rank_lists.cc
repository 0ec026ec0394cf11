#include "client/rank_lists.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr int32_t kLargest = 1'000'000;

absl::StatusOr<int32_t> ParseNumber(absl::string_view text, absl::string_view part) {
  int32_t value = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &value) || value > kLargest) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", part, "\" is not a number or a range such as 0-3"));
  }
  return value;
}

// "3" or "0-3"
absl::Status AppendRange(absl::string_view part, std::vector<int32_t>& out) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(part, absl::MaxSplits('-', 1));
  XFER_ASSIGN_OR_RETURN(const int32_t first, ParseNumber(ends.first, part));
  int32_t last = first;
  if (part.find('-') != absl::string_view::npos) {
    XFER_ASSIGN_OR_RETURN(last, ParseNumber(ends.second, part));
  }
  if (last < first) {
    return absl::InvalidArgumentError(
        absl::StrCat("the range \"", part, "\" ends before it starts"));
  }
  for (int32_t i = first; i <= last; ++i) out.push_back(i);
  return absl::OkStatus();
}

// Numbers from position `begin` on that follow each other, as "a" or "a-b"; moves `begin` behind
// them.
std::string NextRange(absl::Span<const int32_t> numbers, size_t& begin) {
  size_t end = begin + 1;
  while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
  std::string text = absl::StrCat(numbers[begin]);
  if (end - begin > 1) absl::StrAppend(&text, "-", numbers[end - 1]);
  begin = end;
  return text;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseNumberList(absl::string_view text) {
  std::vector<int32_t> numbers;
  if (text.empty()) return numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    XFER_RETURN_IF_ERROR(AppendRange(part, numbers));
  }
  std::sort(numbers.begin(), numbers.end());
  const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
  if (twice != numbers.end()) {
    return absl::InvalidArgumentError(absl::StrCat(*twice, " stands twice in \"", text, "\""));
  }
  return numbers;
}

absl::StatusOr<std::vector<RankId>> ParseRolloutList(absl::string_view text) {
  std::vector<RankId> ranks;
  if (text.empty()) return ranks;
  int32_t engine = -1;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    absl::string_view range = part;
    if (const size_t colon = part.find(':'); colon != absl::string_view::npos) {
      XFER_ASSIGN_OR_RETURN(engine, ParseNumber(part.substr(0, colon), part));
      range = part.substr(colon + 1);
    }
    if (engine < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" names no engine: write ENGINE:RANKS, e.g. 0:0-1"));
    }
    std::vector<int32_t> numbers;
    XFER_RETURN_IF_ERROR(AppendRange(range, numbers));
    for (int32_t rank : numbers) ranks.push_back({Role::kRollout, engine, rank});
  }
  std::sort(ranks.begin(), ranks.end());
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(twice->ToString(), " stands twice in \"", text, "\""));
  }
  return ranks;
}

std::string FormatNumberList(absl::Span<const int32_t> numbers) {
  std::vector<int32_t> sorted(numbers.begin(), numbers.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> parts;
  for (size_t i = 0; i < sorted.size();) parts.push_back(NextRange(sorted, i));
  return absl::StrJoin(parts, ",");
}

std::string FormatRolloutList(absl::Span<const RankId> ranks) {
  std::vector<RankId> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> parts;
  for (size_t i = 0; i < sorted.size();) {
    const int32_t engine = sorted[i].engine;
    std::vector<int32_t> numbers;
    for (; i < sorted.size() && sorted[i].engine == engine; ++i) numbers.push_back(sorted[i].rank);
    for (size_t j = 0; j < numbers.size();) {
      parts.push_back(absl::StrCat(engine, ":", NextRange(numbers, j)));
    }
  }
  return absl::StrJoin(parts, ",");
}

}  // namespace xfer
