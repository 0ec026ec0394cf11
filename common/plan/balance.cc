// Dealing bytes to NICs: the busiest NIC shall be as light as can be.
//
// Menus are few, items are many. So the even split is first found for menus as wholes, in fractions
// of bytes (quotas), where it is a small convex problem; then the items of each menu, largest
// first, are dealt out against its quotas. An item is split by rows only where it would overshoot.
#include <cmath>
#include <limits>

#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

// No part smaller than this is split off: its own cost would outweigh the balance.
constexpr int64_t kMinPartBytes = 64 << 10;
// A NIC may be this much over its quota before an item is split, as a share of the busiest NIC.
constexpr double kTolerance = 0.0025;
// Passes of the even split; it stops earlier once nothing moves by more than kConverged of the
// busiest.
constexpr int kMaxPasses = 64;
constexpr double kConverged = 1e-4;

// The items of one menu.
struct Demand {
  uint32_t menu = 0;
  double bytes = 0;
  std::vector<int32_t> nics;    // of the menu, its reserve last
  size_t first_reserve = 0;     // in nics
  std::vector<double> quota;    // by nics
  std::vector<uint32_t> items;  // largest first
};

class Dealer {
 public:
  Dealer(absl::Span<const DealItem> items, absl::Span<const Menu> menus, double floor,
         std::vector<double>& load)
      : items_(items), menus_(menus), floor_(floor), load_(load) {}

  std::vector<Dealt> Run() {
    dealt_.reserve(items_.size());
    CollectDemands();
    Balance();
    tolerance_ = std::max<double>(kMinPartBytes, kTolerance * std::max(Busiest(), floor_));
    for (Demand& demand : demands_) {
      // Earlier menus missed their quotas by a little; this one makes up for it.
      Refill(demand);
      DealOut(demand);
    }
    return ByItem();
  }

 private:
  double Busiest() const {
    return load_.empty() ? 0.0 : *std::max_element(load_.begin(), load_.end());
  }

  void CollectDemands() {
    demands_.resize(menus_.size());
    for (uint32_t m = 0; m < menus_.size(); ++m) {
      Demand& demand = demands_[m];
      demand.menu = m;
      demand.nics = menus_[m].nics;
      demand.first_reserve = demand.nics.size();
      demand.nics.insert(demand.nics.end(), menus_[m].reserve.begin(), menus_[m].reserve.end());
      demand.quota.assign(demand.nics.size(), 0.0);
    }
    for (uint32_t i : LargestFirst(items_.size(), [&](uint32_t i) { return items_[i].bytes; })) {
      Demand& demand = demands_[items_[i].menu];
      demand.bytes += static_cast<double>(items_[i].bytes);
      demand.items.push_back(i);
    }
    // Least flexible first: those with more NICs fill the valleys that these leave.
    std::sort(demands_.begin(), demands_.end(), [](const Demand& a, const Demand& b) {
      return a.nics.size() != b.nics.size() ? a.nics.size() < b.nics.size() : a.menu < b.menu;
    });
  }

  // Repeats the even split of each menu given the others until it stands. Without reserves every
  // step lowers the sum of the squared loads, whose minimum also has the lightest busiest NIC.
  void Balance() {
    for (int pass = 0; pass < kMaxPasses; ++pass) {
      double moved = 0;
      for (Demand& demand : demands_) moved = std::max(moved, Refill(demand));
      if (moved <= kConverged * Busiest()) return;
    }
  }

  // Sets the quotas of a demand anew. Returns the largest change of one.
  double Refill(Demand& demand) {
    const size_t n = demand.nics.size();
    const std::vector<double> before = demand.quota;
    for (size_t i = 0; i < n; ++i) load_[demand.nics[i]] -= demand.quota[i];
    demand.quota.assign(n, 0.0);
    double bytes = demand.bytes;
    if (demand.first_reserve < n) {
      bytes = Pour(demand, 0, demand.first_reserve, floor_, bytes);
      bytes = Pour(demand, demand.first_reserve, n, floor_, bytes);
    }
    Pour(demand, 0, n, std::numeric_limits<double>::infinity(), bytes);
    double moved = 0;
    for (size_t i = 0; i < n; ++i) moved = std::max(moved, std::abs(demand.quota[i] - before[i]));
    return moved;
  }

  // Pours bytes over nics [first, end) of a demand so that the lightest are level, no higher than
  // `cap`. Returns what is left.
  double Pour(Demand& demand, size_t first, size_t end, double cap, double bytes) {
    if (bytes <= 0) return 0;
    order_.clear();
    for (size_t i = first; i < end; ++i) order_.push_back(static_cast<uint32_t>(i));
    std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      const double x = load_[demand.nics[a]];
      const double y = load_[demand.nics[b]];
      return x != y ? x < y : a < b;
    });
    // The level that the k lightest reach together; right where the next one stands above it.
    double sum = bytes;
    double level = 0;
    size_t k = 0;
    while (k < order_.size() && (k == 0 || load_[demand.nics[order_[k]]] < level)) {
      sum += load_[demand.nics[order_[k]]];
      level = sum / static_cast<double>(++k);
    }
    const bool capped = level > cap;
    level = std::min(level, cap);
    for (size_t i = 0; i < k; ++i) {
      double& load = load_[demand.nics[order_[i]]];
      const double poured = std::max(0.0, level - load);
      demand.quota[order_[i]] += poured;
      load += poured;
      bytes -= poured;
    }
    return capped ? std::max(0.0, bytes) : 0.0;
  }

  // Gives out the items of a demand, each to the NIC that is furthest below its quota.
  void DealOut(Demand& demand) {
    for (size_t i = 0; i < demand.nics.size(); ++i) load_[demand.nics[i]] -= demand.quota[i];
    for (uint32_t item : demand.items) {
      const int64_t rows_of_item = items_[item].rows;
      const int64_t row_bytes = static_cast<int64_t>(items_[item].bytes) / rows_of_item;
      int64_t row = 0;
      while (row < rows_of_item) {
        const size_t at =
            std::max_element(demand.quota.begin(), demand.quota.end()) - demand.quota.begin();
        const int64_t left = rows_of_item - row;
        int64_t rows = left;
        if (static_cast<double>(left * row_bytes) > demand.quota[at] + tolerance_) {
          const int64_t fits = static_cast<int64_t>(demand.quota[at]) / row_bytes;
          if (fits * row_bytes >= kMinPartBytes && (left - fits) * row_bytes >= kMinPartBytes) {
            rows = fits;
          }
        }
        const double bytes = static_cast<double>(rows * row_bytes);
        load_[demand.nics[at]] += bytes;
        demand.quota[at] -= bytes;
        dealt_.push_back({item, demand.nics[at], row, rows});
        row += rows;
      }
    }
  }

  // The parts of an item were made in row order, so counting keeps them in it.
  std::vector<Dealt> ByItem() const {
    std::vector<uint32_t> next(items_.size() + 1, 0);
    for (const Dealt& dealt : dealt_) ++next[dealt.item + 1];
    for (size_t i = 0; i < items_.size(); ++i) next[i + 1] += next[i];
    std::vector<Dealt> out(dealt_.size());
    for (const Dealt& dealt : dealt_) out[next[dealt.item]++] = dealt;
    return out;
  }

  const absl::Span<const DealItem> items_;
  const absl::Span<const Menu> menus_;
  const double floor_;
  std::vector<double>& load_;  // by NIC: given, and quotas or what is dealt
  std::vector<Demand> demands_;
  std::vector<uint32_t> order_;  // scratch of Pour()
  double tolerance_ = 0;
  std::vector<Dealt> dealt_;
};

}  // namespace

// Sizes repeat a lot (layers are alike), so they are counted rather than sorted.
std::vector<uint32_t> LargestFirst(size_t count, absl::FunctionRef<uint64_t(uint32_t)> bytes_of) {
  absl::flat_hash_map<uint64_t, uint32_t> counts;
  for (uint32_t i = 0; i < count; ++i) ++counts[bytes_of(i)];
  std::vector<std::pair<uint64_t, uint32_t>> sizes(counts.begin(), counts.end());
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  uint32_t next = 0;
  for (const auto& [bytes, number] : sizes) {
    counts[bytes] = next;
    next += number;
  }
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[counts[bytes_of(i)]++] = i;
  return order;
}

std::vector<Dealt> Deal(absl::Span<const DealItem> items, absl::Span<const Menu> menus,
                        double floor, std::vector<double>& load) {
  return Dealer(items, menus, floor, load).Run();
}

}  // namespace xfer::plan_internal
