// Which holder sends what: the busiest NIC shall be as light as can be.
//
// Holder sets are few, units are many. So the even split is first found for sets as wholes, in
// fractions of bytes (quotas), where it is a small convex problem; then the units of each set,
// largest first, are dealt out against its quotas. A unit is split by rows only where it would
// overshoot.
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

// No part smaller than this is split off: its own cost would outweigh the balance.
constexpr int64_t kMinPartBytes = 64 << 10;
// A NIC may be this much over its quota before a unit is split, as a share of the busiest NIC.
constexpr double kTolerance = 0.0025;
// Passes of the even split; it stops earlier once nothing moves by more than kConverged of the
// busiest.
constexpr int kMaxPasses = 64;
constexpr double kConverged = 1e-4;

// Indices of units, largest first, equal ones in their order. Sizes repeat a lot (layers are
// alike), so they are counted rather than sorted.
std::vector<uint32_t> LargestFirst(absl::Span<const Unit> units) {
  absl::flat_hash_map<uint64_t, uint32_t> counts;
  for (const Unit& unit : units) ++counts[unit.bytes];
  std::vector<std::pair<uint64_t, uint32_t>> sizes(counts.begin(), counts.end());
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  uint32_t next = 0;
  for (const auto& [bytes, count] : sizes) {
    counts[bytes] = next;
    next += count;
  }
  std::vector<uint32_t> order(units.size());
  for (uint32_t u = 0; u < units.size(); ++u) order[counts[units[u].bytes]++] = u;
  return order;
}

// What one holder set must send over the wire.
struct Demand {
  uint32_t set = 0;
  double bytes = 0;
  std::vector<int32_t> nics;    // distinct, that its holders sit at
  std::vector<double> quota;    // by nics
  std::vector<uint32_t> units;  // largest first
};

class Chooser {
 public:
  Chooser(const Ranks& ranks, const HolderSets& sets, absl::Span<const Unit> units)
      : ranks_(ranks),
        sets_(sets),
        units_(units),
        load_(ranks.nics, 0.0),
        sent_(ranks.sources, 0),
        local_(ranks.sources, 0) {}

  std::vector<Part> Run() {
    parts_.reserve(units_.size());
    SplitLocalFromWire();
    Balance();
    const double busiest = std::max(BusiestOf(load_), BusiestOf(arrivals_));
    tolerance_ = std::max<double>(kMinPartBytes, kTolerance * busiest);
    for (Demand& demand : demands_) {
      // Earlier sets missed their quotas by a little; this one makes up for it.
      Refill(demand);
      Deal(demand);
    }
    return ByUnit();
  }

 private:
  static double BusiestOf(const std::vector<double>& loads) {
    return loads.empty() ? 0.0 : *std::max_element(loads.begin(), loads.end());
  }

  // Gives units with a holder on their own node to it; sorts the others into demands_.
  void SplitLocalFromWire() {
    arrivals_.assign(ranks_.nics, 0.0);
    std::vector<int32_t> demand_of(sets_.size(), -1);
    for (uint32_t u : LargestFirst(units_)) {
      const Unit& unit = units_[u];
      if (GiveLocally(u)) continue;
      arrivals_[ranks_.nic[unit.destination]] += static_cast<double>(unit.bytes);
      int32_t& d = demand_of[unit.holders];
      if (d < 0) {
        d = static_cast<int32_t>(demands_.size());
        demands_.push_back(NewDemand(unit.holders));
      }
      demands_[d].bytes += static_cast<double>(unit.bytes);
      demands_[d].units.push_back(u);
    }
    // Least flexible first: those with more NICs fill the valleys that these leave.
    std::sort(demands_.begin(), demands_.end(), [](const Demand& a, const Demand& b) {
      return a.nics.size() != b.nics.size() ? a.nics.size() < b.nics.size() : a.set < b.set;
    });
  }

  Demand NewDemand(uint32_t set) const {
    Demand demand;
    demand.set = set;
    for (const Holder& holder : sets_[set]) demand.nics.push_back(ranks_.nic[holder.rank]);
    std::sort(demand.nics.begin(), demand.nics.end());
    demand.nics.erase(std::unique(demand.nics.begin(), demand.nics.end()), demand.nics.end());
    demand.quota.assign(demand.nics.size(), 0.0);
    return demand;
  }

  bool GiveLocally(uint32_t u) {
    const Unit& unit = units_[u];
    const absl::Span<const Holder> holders = sets_[unit.holders];
    const int32_t node = ranks_.node[unit.destination];
    int32_t best = -1;
    for (size_t h = 0; h < holders.size(); ++h) {
      if (ranks_.node[holders[h].rank] != node) continue;
      if (best < 0 || local_[holders[h].rank] < local_[holders[best].rank]) {
        best = static_cast<int32_t>(h);
      }
    }
    if (best < 0) return false;
    local_[holders[best].rank] += unit.bytes;
    parts_.push_back({u, static_cast<uint32_t>(best), 0, unit.rows});
    return true;
  }

  // Repeats the even split of each set given the others until it stands. Every step lowers the sum
  // of the squared loads, whose minimum also has the lightest busiest NIC.
  void Balance() {
    for (int pass = 0; pass < kMaxPasses; ++pass) {
      double moved = 0;
      for (Demand& demand : demands_) moved = std::max(moved, Refill(demand));
      if (moved <= kConverged * BusiestOf(load_)) return;
    }
  }

  // Pours the bytes of a demand over its NICs so that the lightest are level. Returns the largest
  // change of a quota.
  double Refill(Demand& demand) {
    const size_t n = demand.nics.size();
    order_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      load_[demand.nics[i]] -= demand.quota[i];
      order_[i] = static_cast<uint32_t>(i);
    }
    std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      const double x = load_[demand.nics[a]];
      const double y = load_[demand.nics[b]];
      return x != y ? x < y : a < b;
    });
    // The level that the k lightest reach together; right where the next one stands above it.
    double sum = demand.bytes;
    double level = 0;
    size_t k = 0;
    while (k < n && (k == 0 || load_[demand.nics[order_[k]]] < level)) {
      sum += load_[demand.nics[order_[k]]];
      level = sum / static_cast<double>(++k);
    }
    double moved = 0;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t at = order_[i];
      double& load = load_[demand.nics[at]];
      const double quota = i < k ? std::max(0.0, level - load) : 0.0;
      moved = std::max(moved, std::abs(quota - demand.quota[at]));
      demand.quota[at] = quota;
      load += quota;
    }
    return moved;
  }

  // Gives out the units of a demand, each to the NIC that is furthest below its quota.
  void Deal(Demand& demand) {
    for (size_t i = 0; i < demand.nics.size(); ++i) load_[demand.nics[i]] -= demand.quota[i];
    for (uint32_t u : demand.units) {
      const Unit& unit = units_[u];
      const int64_t row_bytes = static_cast<int64_t>(unit.bytes) / unit.rows;
      int64_t row = 0;
      while (row < unit.rows) {
        const size_t at =
            std::max_element(demand.quota.begin(), demand.quota.end()) - demand.quota.begin();
        const int64_t left = unit.rows - row;
        int64_t rows = left;
        if (static_cast<double>(left * row_bytes) > demand.quota[at] + tolerance_) {
          const int64_t fits = static_cast<int64_t>(demand.quota[at]) / row_bytes;
          if (fits * row_bytes >= kMinPartBytes && (left - fits) * row_bytes >= kMinPartBytes) {
            rows = fits;
          }
        }
        Give(demand, u, at, row, rows, rows * row_bytes);
        row += rows;
      }
    }
  }

  void Give(Demand& demand, uint32_t u, size_t at, int64_t row, int64_t rows, int64_t bytes) {
    const absl::Span<const Holder> holders = sets_[demand.set];
    int32_t best = -1;
    for (size_t h = 0; h < holders.size(); ++h) {
      if (ranks_.nic[holders[h].rank] != demand.nics[at]) continue;
      if (best < 0 || sent_[holders[h].rank] < sent_[holders[best].rank]) {
        best = static_cast<int32_t>(h);
      }
    }
    sent_[holders[best].rank] += static_cast<uint64_t>(bytes);
    load_[demand.nics[at]] += static_cast<double>(bytes);
    demand.quota[at] -= static_cast<double>(bytes);
    parts_.push_back({u, static_cast<uint32_t>(best), row, rows});
  }

  // The parts of a unit were made in row order, so counting keeps them in it.
  std::vector<Part> ByUnit() {
    std::vector<uint32_t> next(units_.size() + 1, 0);
    for (const Part& part : parts_) ++next[part.unit + 1];
    for (size_t u = 0; u < units_.size(); ++u) next[u + 1] += next[u];
    std::vector<Part> out(parts_.size());
    for (const Part& part : parts_) out[next[part.unit]++] = part;
    return out;
  }

  const Ranks& ranks_;
  const HolderSets& sets_;
  const absl::Span<const Unit> units_;
  std::vector<double> load_;      // by NIC: bytes that it sends, quotas or dealt
  std::vector<double> arrivals_;  // by NIC: bytes that it receives
  std::vector<uint64_t> sent_;    // by source: over the wire
  std::vector<uint64_t> local_;   // by source: within its node
  std::vector<Demand> demands_;
  std::vector<uint32_t> order_;  // scratch of Refill()
  double tolerance_ = 0;
  std::vector<Part> parts_;
};

}  // namespace

std::vector<Part> Choose(const Ranks& ranks, const HolderSets& sets, absl::Span<const Unit> units) {
  return Chooser(ranks, sets, units).Run();
}

}  // namespace xfer::plan_internal
