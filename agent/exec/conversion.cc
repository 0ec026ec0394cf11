#include "agent/exec/conversion.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/convert.h"

namespace xfer {
namespace {

// Strides of `levels` repetitions of `run` bytes that follow each other without gaps, on one side.
template <typename SetStride>
void FillContiguous(Copy& copy, SetStride set) {
  uint64_t stride = copy.run;
  for (size_t i = copy.levels.size(); i-- > 0;) {
    set(copy.levels[i], static_cast<int64_t>(stride));
    stride *= copy.levels[i].count;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConvertedTransfer>> SplitConversion(const Transfer& transfer) {
  const DType from = transfer.conversion.from;
  const DType to = transfer.conversion.to;
  if (!CanConvert(from, to)) {
    return absl::UnimplementedError(absl::StrCat(
        "transfer ", transfer.id, ": there is no conversion from ", Name(from), " to ", Name(to)));
  }
  const uint64_t source_size = SizeOf(from);
  const uint64_t destination_size = SizeOf(to);
  auto out = std::make_unique<ConvertedTransfer>();
  out->wire = transfer;
  out->wire.conversion = {to, to};
  out->gather = transfer;
  out->gather.conversion = {from, from};
  out->gather.bytes = transfer.bytes / destination_size * source_size;
  uint64_t wire_at = 0;
  uint64_t gather_at = 0;
  for (size_t i = 0; i < transfer.copies.size(); ++i) {
    Copy& wire = out->wire.copies[i];
    wire.source_offset = wire_at;
    FillContiguous(wire, [](CopyLevel& level, int64_t stride) { level.source_stride = stride; });
    wire_at += wire.bytes();

    Copy& gather = out->gather.copies[i];
    gather.run = gather.run / destination_size * source_size;
    gather.destination_offset = gather_at;
    FillContiguous(gather,
                   [](CopyLevel& level, int64_t stride) { level.destination_stride = stride; });
    gather_at += gather.bytes();
  }
  return out;
}

void ConvertRange(const Transfer& transfer, const ConvertedTransfer& converted,
                  const std::byte* source, uint64_t begin, uint64_t end,
                  absl::Span<std::byte> out) {
  const DType from = transfer.conversion.from;
  const DType to = transfer.conversion.to;
  const uint64_t source_size = SizeOf(from);
  const uint64_t destination_size = SizeOf(to);
  ForEachRun(converted.gather, begin / destination_size * source_size,
             end / destination_size * source_size,
             [&](uint64_t source_offset, uint64_t stream_offset, uint64_t bytes) {
               const uint64_t at = stream_offset / source_size * destination_size - begin;
               ConvertRun(from, to, {source + source_offset, bytes},
                          out.subspan(at, bytes / source_size * destination_size));
             });
}

}  // namespace xfer
