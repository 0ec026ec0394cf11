#include "common/plan/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

// Hands on runs, joining those that continue each other on both sides.
class RunJoiner {
 public:
  explicit RunJoiner(absl::FunctionRef<void(uint64_t, uint64_t, uint64_t)> fn) : fn_(fn) {}

  void Add(uint64_t source, uint64_t destination, uint64_t bytes) {
    if (bytes_ != 0 && source == source_ + bytes_ && destination == destination_ + bytes_) {
      bytes_ += bytes;
      return;
    }
    Flush();
    source_ = source;
    destination_ = destination;
    bytes_ = bytes;
  }

  void Flush() {
    if (bytes_ != 0) fn_(source_, destination_, bytes_);
    bytes_ = 0;
  }

 private:
  absl::FunctionRef<void(uint64_t, uint64_t, uint64_t)> fn_;
  uint64_t source_ = 0;
  uint64_t destination_ = 0;
  uint64_t bytes_ = 0;
};

// Bytes [first, last) of one copy's own stream; first < last. Negative strides ride on unsigned
// wrap-around, which is exact modulo 2^64.
void Expand(const Copy& copy, uint64_t first, uint64_t last, RunJoiner& out) {
  const size_t levels = copy.levels.size();
  absl::InlinedVector<uint64_t, 4> index(levels, 0);
  uint64_t source = copy.source_offset;
  uint64_t destination = copy.destination_offset;
  uint64_t run_index = first / copy.run;
  uint64_t skip = first % copy.run;
  for (size_t l = levels; l-- > 0;) {
    const CopyLevel& level = copy.levels[l];
    index[l] = run_index % level.count;
    run_index /= level.count;
    source += index[l] * static_cast<uint64_t>(level.source_stride);
    destination += index[l] * static_cast<uint64_t>(level.destination_stride);
  }
  while (true) {
    const uint64_t take = std::min(copy.run - skip, last - first);
    out.Add(source + skip, destination + skip, take);
    first += take;
    skip = 0;
    if (first == last) return;
    for (size_t l = levels; l-- > 0;) {
      const CopyLevel& level = copy.levels[l];
      if (++index[l] < level.count) {
        source += static_cast<uint64_t>(level.source_stride);
        destination += static_cast<uint64_t>(level.destination_stride);
        break;
      }
      source -= (level.count - 1) * static_cast<uint64_t>(level.source_stride);
      destination -= (level.count - 1) * static_cast<uint64_t>(level.destination_stride);
      index[l] = 0;
    }
  }
}

}  // namespace

std::string RankId::ToString() const {
  if (role == Role::kTrainer) return absl::StrCat("trainer ", rank);
  return absl::StrCat("engine ", engine, " rank ", rank);
}

double PlanStats::ratio() const {
  if (lower_bound_bytes == 0) return 1.0;
  return static_cast<double>(std::max(busiest_in_bytes, busiest_out_bytes)) /
         static_cast<double>(lower_bound_bytes);
}

void ForEachRun(const Transfer& transfer, uint64_t begin, uint64_t end,
                absl::FunctionRef<void(uint64_t, uint64_t, uint64_t)> fn) {
  RunJoiner out(fn);
  uint64_t position = 0;
  for (const Copy& copy : transfer.copies) {
    if (position >= end) break;
    const uint64_t bytes = copy.bytes();
    const uint64_t first = begin > position ? begin - position : 0;
    const uint64_t last = std::min(bytes, end - position);
    if (first < last) Expand(copy, first, last, out);
    position += bytes;
  }
  out.Flush();
}

}  // namespace xfer
