// A plan as text.
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/plan/planner.h"

namespace xfer {
namespace {

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.2f %s", value, kUnits[unit]);
}

void DescribeCopy(const Copy& copy, std::string& out) {
  absl::StrAppend(&out, "    ", copy.source_offset, " -> ", copy.destination_offset, ", run ",
                  copy.run);
  for (const CopyLevel& level : copy.levels) {
    absl::StrAppend(&out, ", x", level.count, " (", level.source_stride, " -> ",
                    level.destination_stride, ")");
  }
  absl::StrAppend(&out, "\n");
}

void DescribeTransfer(const Plan& plan, const TensorTable& tensors, const Transfer& transfer,
                      std::string& out) {
  const bool known = transfer.tensor >= 0 && transfer.tensor < tensors.size();
  absl::StrAppend(&out, "  #", transfer.id, " ",
                  known ? tensors[transfer.tensor].name : absl::StrCat("tensor ", transfer.tensor),
                  " ", transfer.box.ToString(), ": ", plan.ranks[transfer.source].id.ToString(),
                  " region ", transfer.source_region, " -> ",
                  plan.ranks[transfer.destination].id.ToString(), " region ",
                  transfer.destination_region, ", ", HumanBytes(transfer.bytes));
  if (!transfer.conversion.none()) {
    absl::StrAppend(&out, ", ", Name(transfer.conversion.from), " to ",
                    Name(transfer.conversion.to));
  }
  if (!transfer.waits_for.empty()) {
    absl::StrAppend(&out, ", after #", absl::StrJoin(transfer.waits_for, ", #"));
  }
  absl::StrAppend(&out, "\n");
  // A transfer of many copies is no help to a reader; the first ones show the pattern.
  constexpr size_t kMaxCopies = 8;
  for (size_t i = 0; i < std::min(kMaxCopies, transfer.copies.size()); ++i) {
    DescribeCopy(transfer.copies[i], out);
  }
  if (transfer.copies.size() > kMaxCopies) {
    absl::StrAppend(&out, "    and ", transfer.copies.size() - kMaxCopies, " more copies\n");
  }
}

}  // namespace

std::string Describe(const Plan& plan, const TensorTable& tensors, size_t max_transfers) {
  const PlanStats& stats = plan.stats;
  std::string out = absl::StrCat(
      "plan of generation ", plan.generation, ": ", plan.transfers.size(), " transfers, ",
      HumanBytes(stats.bytes), ", of them ", HumanBytes(stats.wire_bytes), " between nodes\n",
      "busiest NIC: ", HumanBytes(stats.busiest_out_bytes), " out, ",
      HumanBytes(stats.busiest_in_bytes), " in; least possible ",
      HumanBytes(stats.lower_bound_bytes), absl::StrFormat(" (x%.2f)\n", stats.ratio()));
  struct Pair {
    uint64_t bytes = 0;
    uint64_t transfers = 0;
  };
  std::vector<uint64_t> sent(plan.ranks.size(), 0);
  std::vector<uint64_t> received(plan.ranks.size(), 0);
  std::map<std::pair<int32_t, int32_t>, Pair> pairs;
  for (const Transfer& transfer : plan.transfers) {
    sent[transfer.source] += transfer.bytes;
    received[transfer.destination] += transfer.bytes;
    Pair& pair = pairs[{transfer.source, transfer.destination}];
    pair.bytes += transfer.bytes;
    ++pair.transfers;
  }
  absl::StrAppend(&out, "ranks:\n");
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const PlanRank& rank = plan.ranks[r];
    absl::StrAppend(&out, "  ", rank.id.ToString(), " on ", rank.node, " NIC ", rank.nic,
                    ": sends ", HumanBytes(sent[r]), ", receives ", HumanBytes(received[r]), "\n");
  }
  absl::StrAppend(&out, "pairs:\n");
  for (const auto& [key, pair] : pairs) {
    const PlanRank& source = plan.ranks[key.first];
    const PlanRank& destination = plan.ranks[key.second];
    absl::StrAppend(&out, "  ", source.id.ToString(), " -> ", destination.id.ToString(), ": ",
                    HumanBytes(pair.bytes), " in ", pair.transfers, " transfers",
                    source.node == destination.node ? ", within the node\n" : "\n");
  }
  if (max_transfers == 0 || plan.transfers.empty()) return out;
  absl::StrAppend(&out, "transfers (offsets, runs and strides in bytes):\n");
  const size_t shown = std::min(max_transfers, plan.transfers.size());
  for (size_t i = 0; i < shown; ++i) DescribeTransfer(plan, tensors, plan.transfers[i], out);
  if (shown < plan.transfers.size()) {
    absl::StrAppend(&out, "  and ", plan.transfers.size() - shown, " more\n");
  }
  return out;
}

}  // namespace xfer
