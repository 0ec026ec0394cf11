#include "agent/transport/verbs/options.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/transport/verbs/device.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace xfer::verbs {
namespace {

absl::Status Wrong(absl::string_view value, absl::string_view takes) {
  return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not ", takes));
}

template <uint64_t Tuning::*kField>
std::string ShowNumber(const Tuning& tuning) {
  return absl::StrCat(tuning.*kField);
}

template <uint64_t Tuning::*kField>
absl::Status ParseNumber(absl::string_view value, Tuning& tuning) {
  if (!absl::SimpleAtoi(value, &(tuning.*kField))) return Wrong(value, "a whole number");
  return absl::OkStatus();
}

template <uint64_t Tuning::*kField>
absl::Status ParseBytes(absl::string_view value, Tuning& tuning) {
  absl::string_view digits = value;
  uint64_t unit = 1;
  for (const auto& [name, bytes] : {std::pair<absl::string_view, uint64_t>{"KiB", 1ull << 10},
                                    {"MiB", 1ull << 20},
                                    {"GiB", 1ull << 30}}) {
    if (absl::ConsumeSuffix(&digits, name)) unit = bytes;
  }
  uint64_t count = 0;
  if (!absl::SimpleAtoi(digits, &count) || count > std::numeric_limits<uint64_t>::max() / unit) {
    return Wrong(value, "a size, e.g. 65536, 64KiB or 1MiB");
  }
  tuning.*kField = count * unit;
  return absl::OkStatus();
}

template <absl::Duration Tuning::*kField>
std::string ShowDuration(const Tuning& tuning) {
  return absl::FormatDuration(tuning.*kField);
}

template <absl::Duration Tuning::*kField>
absl::Status ParseTime(absl::string_view value, Tuning& tuning) {
  if (!absl::ParseDuration(value, &(tuning.*kField)))
    return Wrong(value, "a time, e.g. 50us or 30s");
  return absl::OkStatus();
}

std::string ShowNics(const Tuning& tuning) { return absl::StrJoin(tuning.nics, "+"); }

absl::Status ParseNics(absl::string_view value, Tuning& tuning) {
  tuning.nics = absl::StrSplit(value, '+', absl::SkipEmpty());
  return absl::OkStatus();
}

std::string ShowRelaxed(const Tuning& tuning) { return tuning.relaxed_ordering ? "on" : "off"; }

absl::Status ParseRelaxed(absl::string_view value, Tuning& tuning) {
  if (value != "on" && value != "off") return Wrong(value, "on or off");
  tuning.relaxed_ordering = value == "on";
  return absl::OkStatus();
}

template <uint64_t Tuning::*kField>
constexpr Setting Number(absl::string_view name, absl::string_view unit,
                         absl::string_view meaning) {
  return {name, unit, meaning, &ShowNumber<kField>, &ParseNumber<kField>};
}
template <uint64_t Tuning::*kField>
constexpr Setting Bytes(absl::string_view name, absl::string_view meaning) {
  return {name, "bytes", meaning, &ShowNumber<kField>, &ParseBytes<kField>};
}
template <absl::Duration Tuning::*kField>
constexpr Setting Time(absl::string_view name, absl::string_view meaning) {
  return {name, "", meaning, &ShowDuration<kField>, &ParseTime<kField>};
}

constexpr Setting kSettings[] = {
    {"nics", "",
     "devices (mlx5_0) or ports (mlx5_0:1) that are this node's rails; empty: all active ports",
     &ShowNics, &ParseNics},
    Number<&Tuning::queue_pairs>("queue_pairs", "", "connections a rail and peer"),
    Bytes<&Tuning::chunk_bytes>("chunk_bytes", "most bytes of one RDMA write"),
    Number<&Tuning::list_requests>(
        "list_requests", "",
        "most writes that are posted together; the last is signalled and tells "
        "the receiver"),
    Bytes<&Tuning::list_bytes>("list_bytes", "most bytes that are posted together"),
    Number<&Tuning::queue_requests>("queue_requests", "", "writes under way on a connection"),
    Bytes<&Tuning::queue_bytes>("queue_bytes", "bytes under way on a connection"),
    Number<&Tuning::gather_pieces>("gather_pieces", "",
                                   "most source runs in one write (the device may allow fewer)"),
    Bytes<&Tuning::region_bytes>(
        "region_bytes", "larger memory is registered in pieces of this; 0: the device's limit"),
    {"relaxed_ordering", "",
     "let the NIC write to memory in any order (where device and kernel can)", &ShowRelaxed,
     &ParseRelaxed},
    Number<&Tuning::ack_timeout>("ack_timeout", "",
                                 "a packet without an answer is sent again after 4.096 us * 2^n"),
    Number<&Tuning::retries>("retries", "",
                             "how often, then the rail is given up (Soft-RoCE takes 7 for ever)"),
    Number<&Tuning::traffic_class>("traffic_class", "", "of the packets (RoCE: DSCP * 4)"),
    Number<&Tuning::service_level>("service_level", "", "of the packets (RoCE: 802.1p priority)"),
    Time<&Tuning::spin>("spin", "how long a waiting sender polls before it sleeps"),
    Time<&Tuning::stall_timeout>(
        "stall_timeout",
        "an endpoint on which nothing moves, or a sender that is silent, for so long "
        "is given up"),
};

absl::Status InRange(absl::string_view name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "verbs: ", name, "=", value, " is out of range; it takes ", least, " to ", most));
}

}  // namespace

absl::Span<const Setting> VerbsSettings() { return kSettings; }

absl::StatusOr<Tuning> ParseTuning(absl::string_view text, Tuning tuning) {
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const Setting* found = nullptr;
    for (const Setting& setting : kSettings) {
      if (setting.name == absl::StripAsciiWhitespace(pair.first)) found = &setting;
    }
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "verbs: no setting \"", pair.first, "\"; there are ",
          absl::StrJoin(kSettings, ", ",
                        [](std::string* out, const Setting& s) { absl::StrAppend(out, s.name); })));
    }
    XFER_RETURN_IF_ERROR(Annotate(found->parse(absl::StripAsciiWhitespace(pair.second), tuning),
                                  absl::StrCat("verbs: ", found->name)));
  }
  XFER_RETURN_IF_ERROR(CheckTuning(tuning));
  return tuning;
}

absl::Status CheckTuning(const Tuning& t) {
  constexpr uint64_t kMost =
      1ull << 30;  // bytes of one write: less than 2^31 (IBA, message length)
  for (const std::string& nic : t.nics) XFER_RETURN_IF_ERROR(ParseNicName(nic).status());
  XFER_RETURN_IF_ERROR(InRange("queue_pairs", t.queue_pairs, 1, 64));
  XFER_RETURN_IF_ERROR(InRange("chunk_bytes", t.chunk_bytes, kDigestLeafBytes, kMost));
  XFER_RETURN_IF_ERROR(InRange("list_requests", t.list_requests, 1, 1024));
  XFER_RETURN_IF_ERROR(InRange("list_bytes", t.list_bytes, t.chunk_bytes, kMost));
  XFER_RETURN_IF_ERROR(InRange("queue_requests", t.queue_requests, t.list_requests, 16384));
  XFER_RETURN_IF_ERROR(InRange("queue_bytes", t.queue_bytes, t.list_bytes, 1ull << 40));
  XFER_RETURN_IF_ERROR(InRange("gather_pieces", t.gather_pieces, 1, 256));
  if (t.region_bytes != 0) {
    XFER_RETURN_IF_ERROR(InRange("region_bytes", t.region_bytes, kDigestLeafBytes, 1ull << 62));
  }
  XFER_RETURN_IF_ERROR(InRange("ack_timeout", t.ack_timeout, 1, 31));
  XFER_RETURN_IF_ERROR(InRange("retries", t.retries, 0, 7));
  XFER_RETURN_IF_ERROR(InRange("traffic_class", t.traffic_class, 0, 255));
  XFER_RETURN_IF_ERROR(InRange("service_level", t.service_level, 0, 15));
  if (t.spin < absl::ZeroDuration() || t.stall_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "verbs: spin=", absl::FormatDuration(t.spin),
        " and stall_timeout=", absl::FormatDuration(t.stall_timeout), " must be positive"));
  }
  return absl::OkStatus();
}

}  // namespace xfer::verbs
