// What the busiest NIC carries, and the least that it could.
#include <numeric>

#include "common/base/status.h"
#include "common/plan/planner_internal.h"

namespace xfer::plan_internal {
namespace {

// A destination piece of the tensor in hand.
struct Need {
  const Piece* piece;
  int32_t node;
};

uint64_t CeilDivide(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

class BoundBuilder {
 public:
  BoundBuilder(const Ranks& ranks, const SourceIndex& index)
      : ranks_(ranks), index_(index), has_source_(ranks.nodes(), false), enters_(ranks.nodes(), 0) {
    for (int32_t r = 0; r < ranks.sources; ++r) {
      if (!ranks.manifests[r]->pieces.empty()) has_source_[ranks.node[r]] = true;
    }
  }

  // `needs` of one tensor, those of a node side by side.
  void AddTensor(absl::Span<const Need> needs) {
    leaves_.clear();
    int64_t smallest = 8;  // bytes of an element
    int32_t nodes = 0;
    uint64_t entered = 0;
    for (size_t i = 0; i < needs.size();) {
      const size_t first = i;
      boxes_.clear();
      int64_t size = 8;
      for (; i < needs.size() && needs[i].node == needs[first].node; ++i) {
        const Box& box = needs[i].piece->box;
        if (boxes_.empty() || *boxes_.back() != box) boxes_.push_back(&box);
        size = std::min(size, SizeOf(needs[i].piece->dtype));
      }
      entered = AddNode(needs[first].piece->tensor, needs[first].node, size);
      if (entered > 0) ++nodes;
      smallest = std::min(smallest, size);
    }
    if (nodes == 0) return;
    boxes_.clear();
    for (const Box& box : leaves_) {
      if (boxes_.empty() || *boxes_.back() != box) boxes_.push_back(&box);
    }
    for (const Box& box : Union(boxes_)) leave_ += box.NumElements() * smallest;
  }

  uint64_t Bound() const {
    uint64_t bound = 0;
    uint64_t senders = 0;
    for (int32_t n = 0; n < ranks_.nodes(); ++n) {
      bound = std::max(bound, CeilDivide(enters_[n], ranks_.nics_of_node[n]));
      if (has_source_[n]) senders += ranks_.nics_of_node[n];
    }
    return senders == 0 ? bound : std::max(bound, CeilDivide(leave_, senders));
  }

 private:
  // boxes_ are what the node needs of the tensor. Returns the bytes that must enter it.
  uint64_t AddNode(TensorId tensor, int32_t node, int64_t size) {
    std::vector<Box> needed = Union(boxes_);
    if (has_source_[node]) {
      for (const SourceBox& source : index_.Boxes(tensor)) {
        const absl::Span<const Holder> holders = index_.sets()[source.holders];
        if (std::any_of(holders.begin(), holders.end(),
                        [&](const Holder& h) { return ranks_.node[h.rank] == node; })) {
          Remove(source.box, needed);
        }
      }
    }
    uint64_t bytes = 0;
    for (Box& box : needed) {
      bytes += box.NumElements() * size;
      leaves_.push_back(std::move(box));
    }
    enters_[node] += bytes;
    return bytes;
  }

  const Ranks& ranks_;
  const SourceIndex& index_;
  std::vector<bool> has_source_;   // by node
  std::vector<uint64_t> enters_;   // by node: bytes that must enter it
  uint64_t leave_ = 0;             // distinct bytes that some node must receive
  std::vector<const Box*> boxes_;  // scratch
  std::vector<Box> leaves_;        // scratch: what nodes must receive of the tensor in hand
};

}  // namespace

uint64_t LowerBound(const TensorTable& tensors, const Ranks& ranks, const SourceIndex& index) {
  // Ranks by node, then pieces by tensor, by counting: the needs of a tensor come node by node.
  std::vector<int32_t> by_node(ranks.size() - ranks.sources);
  std::iota(by_node.begin(), by_node.end(), ranks.sources);
  std::stable_sort(by_node.begin(), by_node.end(),
                   [&](int32_t a, int32_t b) { return ranks.node[a] < ranks.node[b]; });
  std::vector<uint32_t> end(tensors.size() + 1, 0);
  for (int32_t r : by_node) {
    for (const Piece& piece : ranks.manifests[r]->pieces) ++end[piece.tensor + 1];
  }
  std::partial_sum(end.begin(), end.end(), end.begin());
  std::vector<Need> needs(end.back());
  for (int32_t r : by_node) {
    for (const Piece& piece : ranks.manifests[r]->pieces) {
      needs[end[piece.tensor]++] = {&piece, ranks.node[r]};
    }
  }
  BoundBuilder builder(ranks, index);
  uint32_t first = 0;
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.AddTensor(absl::MakeSpan(needs).subspan(first, end[t] - first));
    first = end[t];
  }
  return builder.Bound();
}

void FillStats(const Ranks& ranks, Plan& plan) {
  std::vector<uint64_t> out(ranks.nics, 0);
  std::vector<uint64_t> in(ranks.nics, 0);
  PlanStats& stats = plan.stats;
  for (const Transfer& transfer : plan.transfers) {
    stats.bytes += transfer.bytes;
    if (ranks.node[transfer.source] == ranks.node[transfer.destination]) continue;
    stats.wire_bytes += transfer.bytes;
    out[ranks.nic[transfer.source]] += transfer.bytes;
    in[ranks.nic[transfer.destination]] += transfer.bytes;
  }
  for (uint64_t bytes : out) stats.busiest_out_bytes = std::max(stats.busiest_out_bytes, bytes);
  for (uint64_t bytes : in) stats.busiest_in_bytes = std::max(stats.busiest_in_bytes, bytes);
}

}  // namespace xfer::plan_internal
