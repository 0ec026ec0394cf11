// Transfers that came from outside are not trusted: see CheckTransfer().
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/plan.h"

namespace xfer {
namespace {

using Int128 = __int128;

// What the runs of a copy touch on one side, relative to the region's start.
struct Reach {
  Int128 low;
  Int128 high;  // one past the last byte
};

absl::Status Bad(absl::string_view side, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(side, " ", what));
}

// Adds one level to `reach`. A product that fits the region is the only one that is ever added, so
// the sums stay far below 2^127.
absl::Status AddLevel(absl::string_view side, uint64_t count, int64_t stride, uint64_t region_bytes,
                      Reach& reach) {
  if (count == 0) return Bad(side, "level repeats 0 times; a level repeats at least once");
  if (count == 1) return absl::OkStatus();
  if (stride == 0) {
    return Bad(side,
               absl::StrCat("stride is 0 at a level of ", count, " repeats; runs must be apart"));
  }
  if (count - 1 > region_bytes) {
    return Bad(side, absl::StrCat("level repeats ", count, " times in a region of ", region_bytes,
                                  " bytes"));
  }
  const Int128 step = static_cast<Int128>(count - 1) * stride;  // < 2^64 * 2^63
  if (step > static_cast<Int128>(region_bytes) || -step > static_cast<Int128>(region_bytes)) {
    return Bad(side, absl::StrCat("level of ", count, " repeats ", stride,
                                  " bytes apart leaves its region of ", region_bytes, " bytes"));
  }
  (step < 0 ? reach.low : reach.high) += step;
  return absl::OkStatus();
}

absl::Status CheckInside(absl::string_view side, uint64_t offset, const Reach& reach,
                         uint64_t region_bytes) {
  if (reach.low < 0 || reach.high > static_cast<Int128>(region_bytes)) {
    return Bad(side, absl::StrCat("offset ", offset, " and its runs leave the region of ",
                                  region_bytes, " bytes"));
  }
  return absl::OkStatus();
}

// Adds the copy's destination bytes to `total`.
absl::Status CheckCopy(const Copy& copy, uint64_t source_size, uint64_t destination_size,
                       uint64_t source_region_bytes, uint64_t destination_region_bytes,
                       uint64_t& total) {
  if (copy.run == 0) return absl::InvalidArgumentError("run of 0 bytes");
  if (copy.run % destination_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("run of ", copy.run,
                                                   " bytes is no whole number of elements of ",
                                                   destination_size, " bytes"));
  }
  const Int128 source_run = static_cast<Int128>(copy.run / destination_size) * source_size;
  Reach source{copy.source_offset, static_cast<Int128>(copy.source_offset) + source_run};
  Reach destination{copy.destination_offset,
                    static_cast<Int128>(copy.destination_offset) + copy.run};
  uint64_t bytes = copy.run;
  for (const CopyLevel& level : copy.levels) {
    XFER_RETURN_IF_ERROR(
        AddLevel("source", level.count, level.source_stride, source_region_bytes, source));
    XFER_RETURN_IF_ERROR(AddLevel("destination", level.count, level.destination_stride,
                                  destination_region_bytes, destination));
    if (__builtin_mul_overflow(bytes, level.count, &bytes)) {
      return absl::InvalidArgumentError("more than 2^64 bytes");
    }
  }
  XFER_RETURN_IF_ERROR(CheckInside("source", copy.source_offset, source, source_region_bytes));
  XFER_RETURN_IF_ERROR(
      CheckInside("destination", copy.destination_offset, destination, destination_region_bytes));
  if (__builtin_add_overflow(total, bytes, &total)) {
    return absl::InvalidArgumentError("more than 2^64 bytes");
  }
  return absl::OkStatus();
}

bool IsDType(DType dtype) { return dtype >= DType::kBF16 && dtype <= DType::kI16; }

}  // namespace

absl::Status CheckTransfer(const Transfer& transfer, uint64_t source_region_bytes,
                           uint64_t destination_region_bytes) {
  const std::string name = absl::StrCat("transfer ", transfer.id);
  if (transfer.copies.empty() || transfer.bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is empty; a transfer moves some bytes"));
  }
  if (!IsDType(transfer.conversion.from) || !IsDType(transfer.conversion.to)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " converts between unknown types ", static_cast<int>(transfer.conversion.from),
        " and ", static_cast<int>(transfer.conversion.to)));
  }
  // Without a conversion bytes are bytes: what the elements were no longer matters.
  const bool converts = !transfer.conversion.none();
  const uint64_t source_size = converts ? SizeOf(transfer.conversion.from) : 1;
  const uint64_t destination_size = converts ? SizeOf(transfer.conversion.to) : 1;
  uint64_t total = 0;
  for (size_t i = 0; i < transfer.copies.size(); ++i) {
    absl::Status status = CheckCopy(transfer.copies[i], source_size, destination_size,
                                    source_region_bytes, destination_region_bytes, total);
    if (!status.ok()) return Annotate(status, absl::StrCat(name, ", copy ", i));
  }
  if (total != transfer.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " says ", transfer.bytes, " bytes but its copies hold ", total));
  }
  // Every destination byte is written once, so more bytes than the region has cannot be right.
  if (total > destination_region_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " writes ", total, " bytes to a destination region of ", destination_region_bytes));
  }
  return absl::OkStatus();
}

}  // namespace xfer
