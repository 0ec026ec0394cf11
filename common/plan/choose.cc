// Which holder or peer fills what.
//
// Bytes that a node has cost no NIC and come from there. For the others it is first settled which
// ranks of a node receive them (all that need them, or with fan-out one for each part, so that the
// node's NICs share the load), then from where.
#include <numeric>

#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

// Rows that one unit's rank receives over the wire.
struct Reception {
  uint32_t unit = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

// Units of equal content on one node.
struct Cluster {
  uint32_t first = 0;  // in Chooser::members_
  uint32_t size = 0;
  uint32_t group = 0;  // equal content on all nodes
  uint32_t first_reception = 0;
  uint32_t receptions = 0;
};

class Chooser {
 public:
  Chooser(const Ranks& ranks, const SourceIndex& index, const Units& units, FanOut fan_out)
      : ranks_(ranks),
        index_(index),
        sets_(index.sets()),
        units_(units),
        fan_out_(fan_out),
        arrivals_(ranks.nics, 0.0),
        sent_(ranks.size(), 0),
        received_(ranks.size(), 0),
        local_(ranks.sources, 0) {}

  std::vector<Part> Run() {
    parts_.reserve(units_.units.size());
    SplitLocalFromWire();
    MakeClusters();
    Receive();
    Send();
    return ByUnit();
  }

 private:
  const Unit& unit(uint32_t u) const { return units_.units[u]; }
  int32_t NodeOf(uint32_t u) const { return ranks_.node[unit(u).destination]; }
  int32_t NicOf(uint32_t u) const { return ranks_.nic[unit(u).destination]; }
  int64_t RowBytes(uint32_t u) const { return static_cast<int64_t>(unit(u).bytes) / unit(u).rows; }

  // Gives units with a holder on their own node to it; the others are members_, largest first.
  void SplitLocalFromWire() {
    for (uint32_t u :
         LargestFirst(units_.units.size(), [&](uint32_t u) { return unit(u).bytes; })) {
      const absl::Span<const Holder> holders = sets_[unit(u).holders];
      int32_t best = -1;
      for (size_t h = 0; h < holders.size(); ++h) {
        if (ranks_.node[holders[h].rank] != NodeOf(u)) continue;
        if (best < 0 || local_[holders[h].rank] < local_[holders[best].rank]) {
          best = static_cast<int32_t>(h);
        }
      }
      if (best < 0) {
        members_.push_back(u);
        continue;
      }
      local_[holders[best].rank] += unit(u).bytes;
      parts_.push_back({u, static_cast<uint32_t>(best), -1, 0, unit(u).rows});
    }
  }

  // Sorts members_ into clusters; without fan-out each is one of its own.
  void MakeClusters() {
    if (fan_out_ == FanOut::kNone) {
      clusters_.resize(members_.size());
      for (uint32_t i = 0; i < members_.size(); ++i) clusters_[i] = {i, 1, i, 0, 0};
      return;
    }
    const std::vector<uint32_t> groups = GroupUnits(ranks_, index_, units_, members_);
    std::vector<uint32_t> order(members_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      if (groups[a] != groups[b]) return groups[a] < groups[b];
      return NodeOf(members_[a]) < NodeOf(members_[b]);
    });
    std::vector<uint32_t> sorted(members_.size());
    for (uint32_t i = 0; i < order.size(); ++i) {
      sorted[i] = members_[order[i]];
      const uint32_t group = groups[order[i]];
      if (clusters_.empty() || clusters_.back().group != group ||
          NodeOf(sorted[i - 1]) != NodeOf(sorted[i])) {
        clusters_.push_back({i, 0, group, 0, 0});
      }
      ++clusters_.back().size;
    }
    members_ = std::move(sorted);
  }

  // Settles by which of its ranks the bytes of a cluster enter the node; they pass them on to the
  // others.
  void Receive() {
    std::vector<DealItem> items;
    std::vector<uint32_t> cluster_of;  // by item
    std::vector<Menu> menus;
    absl::flat_hash_map<std::vector<int32_t>, uint32_t> menu_ids;
    for (uint32_t c = 0; c < clusters_.size(); ++c) {
      const Cluster& cluster = clusters_[c];
      const uint32_t u = members_[cluster.first];
      if (cluster.size == 1) {
        arrivals_[NicOf(u)] += static_cast<double>(unit(u).bytes);
        continue;
      }
      std::vector<int32_t> nics;
      for (uint32_t i = 0; i < cluster.size; ++i)
        nics.push_back(NicOf(members_[cluster.first + i]));
      std::sort(nics.begin(), nics.end());
      nics.erase(std::unique(nics.begin(), nics.end()), nics.end());
      const auto [it, is_new] = menu_ids.try_emplace(nics, static_cast<uint32_t>(menus.size()));
      if (is_new) menus.push_back({nics, {}});
      items.push_back({unit(u).bytes, unit(u).rows, it->second});
      cluster_of.push_back(c);
    }
    const std::vector<Dealt> dealt = Deal(items, menus, /*floor=*/0, arrivals_);
    receptions_.reserve(clusters_.size() + dealt.size());
    size_t next = 0;
    for (uint32_t c = 0; c < clusters_.size(); ++c) {
      Cluster& cluster = clusters_[c];
      cluster.first_reception = static_cast<uint32_t>(receptions_.size());
      if (cluster.size == 1) {
        const uint32_t u = members_[cluster.first];
        receptions_.push_back({u, 0, unit(u).rows});
      }
      for (; next < dealt.size() && cluster_of[dealt[next].item] == c; ++next) {
        PassOn(cluster, dealt[next]);
      }
      cluster.receptions = static_cast<uint32_t>(receptions_.size()) - cluster.first_reception;
    }
  }

  void PassOn(const Cluster& cluster, const Dealt& dealt) {
    const absl::Span<const uint32_t> members =
        absl::MakeSpan(members_).subspan(cluster.first, cluster.size);
    uint32_t best = 0;
    bool found = false;
    for (uint32_t u : members) {
      if (NicOf(u) != dealt.nic) continue;
      if (!found || received_[unit(u).destination] < received_[unit(best).destination]) best = u;
      found = true;
    }
    received_[unit(best).destination] += dealt.rows * RowBytes(best);
    receptions_.push_back({best, dealt.first_row, dealt.rows});
    for (uint32_t u : members) {
      if (u == best) continue;
      parts_.push_back({u, 0, static_cast<int32_t>(best), dealt.first_row, dealt.rows});
    }
  }

  // What is sent over the wire: rows of a unit, by a holder or a peer.
  struct Sending {
    uint32_t unit;
    int32_t peer;  // -1: holders only
    int64_t first_row;
  };

  // Settles from where the receptions come.
  void Send() {
    for (uint32_t c = 0; c < clusters_.size();) {
      uint32_t end = c + 1;
      while (end < clusters_.size() && clusters_[end].group == clusters_[c].group) ++end;
      if (fan_out_ == FanOut::kRelay && end - c > 1) {
        AddRelayed(c, end);
      } else {
        for (; c < end; ++c) AddDirect(clusters_[c]);
      }
      c = end;
    }
    const double floor =
        arrivals_.empty() ? 0.0 : *std::max_element(arrivals_.begin(), arrivals_.end());
    std::vector<double> departures(ranks_.nics, 0.0);
    for (const Dealt& dealt : Deal(items_, menus_, floor, departures)) {
      const Sending& sending = sendings_[dealt.item];
      Give(sending, dealt.nic, sending.first_row + dealt.first_row, dealt.rows);
    }
  }

  void AddDirect(const Cluster& cluster) {
    for (uint32_t r = 0; r < cluster.receptions; ++r) {
      const Reception& reception = receptions_[cluster.first_reception + r];
      AddSending(reception.unit, -1, reception.first_row, reception.rows);
    }
  }

  // Clusters [first, end) have equal content on several nodes. One of them, the root, gets it from
  // the holders; the others may get it from the root, too.
  void AddRelayed(uint32_t first, uint32_t end) {
    relayed_.resize(ranks_.nodes(), 0);
    uint32_t root = first;
    for (uint32_t c = first; c < end; ++c) {
      if (relayed_[NodeOf(members_[clusters_[c].first])] <
          relayed_[NodeOf(members_[clusters_[root].first])]) {
        root = c;
      }
    }
    relayed_[NodeOf(members_[clusters_[root].first])] +=
        unit(members_[clusters_[root].first]).bytes * (end - first - 1);
    const Cluster& from = clusters_[root];
    AddDirect(from);
    for (uint32_t c = first; c < end; ++c) {
      if (c == root) continue;
      for (uint32_t r = 0; r < clusters_[c].receptions; ++r) {
        const Reception& to = receptions_[clusters_[c].first_reception + r];
        for (uint32_t s = 0; s < from.receptions; ++s) {
          const Reception& held = receptions_[from.first_reception + s];
          const int64_t low = std::max(to.first_row, held.first_row);
          const int64_t high = std::min(to.first_row + to.rows, held.first_row + held.rows);
          if (low < high) AddSending(to.unit, static_cast<int32_t>(held.unit), low, high - low);
        }
      }
    }
  }

  void AddSending(uint32_t u, int32_t peer, int64_t first_row, int64_t rows) {
    const int32_t reserve = peer < 0 ? -1 : NicOf(static_cast<uint32_t>(peer));
    const uint64_t key =
        static_cast<uint64_t>(unit(u).holders) << 32 | static_cast<uint32_t>(reserve);
    const auto [it, is_new] = menu_ids_.try_emplace(key, static_cast<uint32_t>(menus_.size()));
    if (is_new) menus_.push_back(NewMenu(unit(u).holders, reserve));
    items_.push_back({static_cast<uint64_t>(rows * RowBytes(u)), rows, it->second});
    sendings_.push_back({u, peer, first_row});
  }

  Menu NewMenu(uint32_t set, int32_t reserve) const {
    Menu menu;
    for (const Holder& holder : sets_[set]) menu.nics.push_back(ranks_.nic[holder.rank]);
    std::sort(menu.nics.begin(), menu.nics.end());
    menu.nics.erase(std::unique(menu.nics.begin(), menu.nics.end()), menu.nics.end());
    if (reserve >= 0 && !std::binary_search(menu.nics.begin(), menu.nics.end(), reserve)) {
      menu.reserve.push_back(reserve);
    }
    return menu;
  }

  // Among the holders behind the NIC, the one that has sent least; else the peer.
  void Give(const Sending& sending, int32_t nic, int64_t first_row, int64_t rows) {
    const absl::Span<const Holder> holders = sets_[unit(sending.unit).holders];
    int32_t best = -1;
    for (size_t h = 0; h < holders.size(); ++h) {
      if (ranks_.nic[holders[h].rank] != nic) continue;
      if (best < 0 || sent_[holders[h].rank] < sent_[holders[best].rank]) {
        best = static_cast<int32_t>(h);
      }
    }
    if (best < 0) {
      parts_.push_back({sending.unit, 0, sending.peer, first_row, rows});
      return;
    }
    sent_[holders[best].rank] += static_cast<uint64_t>(rows * RowBytes(sending.unit));
    parts_.push_back({sending.unit, static_cast<uint32_t>(best), -1, first_row, rows});
  }

  std::vector<Part> ByUnit() const {
    std::vector<uint32_t> next(units_.units.size() + 1, 0);
    for (const Part& part : parts_) ++next[part.unit + 1];
    for (size_t u = 0; u + 1 < next.size(); ++u) next[u + 1] += next[u];
    std::vector<uint32_t> begin = next;
    std::vector<Part> out(parts_.size());
    for (const Part& part : parts_) out[next[part.unit]++] = part;
    for (size_t u = 0; u + 1 < begin.size(); ++u) {
      if (begin[u + 1] - begin[u] < 2) continue;
      std::sort(out.begin() + begin[u], out.begin() + begin[u + 1],
                [](const Part& a, const Part& b) { return a.first_row < b.first_row; });
    }
    return out;
  }

  const Ranks& ranks_;
  const SourceIndex& index_;
  const HolderSets& sets_;
  const Units& units_;
  const FanOut fan_out_;
  std::vector<double> arrivals_;    // by NIC: bytes that it receives
  std::vector<uint64_t> sent_;      // by rank: over the wire
  std::vector<uint64_t> received_;  // by rank: for its cluster
  std::vector<uint64_t> local_;     // by source: within its node
  std::vector<uint64_t> relayed_;   // by node: bytes that it might pass on to other nodes
  std::vector<uint32_t> members_;   // units that are filled over the wire, by cluster
  std::vector<Cluster> clusters_;   // by group, then node
  std::vector<Reception> receptions_;
  std::vector<DealItem> items_;
  std::vector<Sending> sendings_;  // by item
  std::vector<Menu> menus_;
  absl::flat_hash_map<uint64_t, uint32_t> menu_ids_;  // set << 32 | reserve NIC
  std::vector<Part> parts_;
};

}  // namespace

std::vector<Part> Choose(const Ranks& ranks, const SourceIndex& index, const Units& units,
                         FanOut fan_out) {
  return Chooser(ranks, index, units, fan_out).Run();
}

}  // namespace xfer::plan_internal
