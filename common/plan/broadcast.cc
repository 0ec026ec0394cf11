#include "common/plan/broadcast.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace xfer {
namespace {

// "model.layers.3.self_attn" of "model.layers.3.self_attn.q_proj.weight".
absl::string_view ModuleOf(absl::string_view name) {
  for (int i = 0; i < 2; ++i) {
    const size_t dot = name.rfind('.');
    name = dot == absl::string_view::npos ? absl::string_view() : name.substr(0, dot);
  }
  return name;
}

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kBucketAlignment - 1) / kBucketAlignment * kBucketAlignment;
}

struct Stream {
  std::vector<TransferId> transfers;
  TransferId packer = 0;
};

class Planner {
 public:
  Planner(const Plan& plan, const TensorTable& tensors, absl::Span<const int32_t> stages,
          uint64_t bucket_bytes)
      : plan_(plan), tensors_(tensors), stages_(stages), bucket_bytes_(bucket_bytes) {}

  BroadcastPlan Run() {
    CollectStreams();
    ChoosePackers();
    MakeCommunicators();
    std::map<std::pair<int32_t, std::string>, std::deque<OpenBucket>> by_root = FillBuckets();
    for (size_t c = 0; c < out_.communicators.size(); ++c) {
      std::vector<std::deque<OpenBucket>*> roots;
      for (auto& [key, buckets] : by_root) {
        if (key.first == out_.communicators[c].stage) roots.push_back(&buckets);
      }
      for (bool any = true; any;) {
        any = false;
        for (std::deque<OpenBucket>* root : roots) {
          if (root->empty()) continue;
          Emit(static_cast<uint32_t>(c), root->front());
          root->pop_front();
          any = true;
        }
      }
    }
    return std::move(out_);
  }

 private:
  // Streams of one module from one node.
  struct Unit {
    std::vector<uint32_t> streams;
    uint64_t bytes = 0;
  };
  struct OpenBucket {
    std::vector<uint32_t> streams;
    uint64_t bytes = 0;
  };

  const Transfer& PackerOf(const Stream& stream) const { return plan_.transfers[stream.packer]; }
  const std::string& NodeOf(const Stream& stream) const {
    return plan_.ranks[PackerOf(stream).source].node;
  }
  int32_t StageOf(const Stream& stream) const { return stages_[PackerOf(stream).source]; }

  void CollectStreams() {
    using Key = std::tuple<TensorId, std::vector<int64_t>, std::vector<int64_t>, int, int>;
    absl::flat_hash_map<Key, uint32_t> found;
    for (const Transfer& t : plan_.transfers) {
      const Key key(t.tensor, {t.box.start.begin(), t.box.start.end()},
                    {t.box.extent.begin(), t.box.extent.end()}, static_cast<int>(t.conversion.from),
                    static_cast<int>(t.conversion.to));
      const auto [it, is_new] = found.try_emplace(key, static_cast<uint32_t>(streams_.size()));
      if (is_new) streams_.emplace_back();
      streams_[it->second].transfers.push_back(t.id);
      out_.kept_bytes += t.bytes;
    }
  }

  void ChoosePackers() {
    std::map<std::string, uint64_t> load;
    for (Stream& stream : streams_) {
      stream.packer = *std::min_element(stream.transfers.begin(), stream.transfers.end(),
                                        [&](TransferId a, TransferId b) {
                                          return load[plan_.ranks[plan_.transfers[a].source].node] <
                                                 load[plan_.ranks[plan_.transfers[b].source].node];
                                        });
      load[NodeOf(stream)] += PackerOf(stream).bytes;
    }
  }

  void MakeCommunicators() {
    std::set<std::string> receivers;
    for (const Transfer& t : plan_.transfers) receivers.insert(plan_.ranks[t.destination].node);
    std::map<int32_t, std::set<std::string>> members;
    for (const Stream& stream : streams_) members[StageOf(stream)].insert(NodeOf(stream));
    for (auto& [stage, nodes] : members) {
      nodes.insert(receivers.begin(), receivers.end());
      out_.communicators.push_back({stage, {nodes.begin(), nodes.end()}});
    }
  }

  std::map<std::pair<int32_t, std::string>, std::deque<OpenBucket>> FillBuckets() const {
    using UnitKey = std::pair<int32_t, absl::string_view>;  // position of the module, and it
    std::map<std::pair<int32_t, std::string>, std::map<UnitKey, Unit>> units;
    absl::flat_hash_map<absl::string_view, int32_t> positions;  // modules in the table's order
    for (TensorId t = 0; t < static_cast<TensorId>(tensors_.size()); ++t) {
      positions.try_emplace(ModuleOf(tensors_[t].name), t);
    }
    for (uint32_t s = 0; s < streams_.size(); ++s) {
      const Transfer& packer = PackerOf(streams_[s]);
      const absl::string_view module = ModuleOf(tensors_[packer.tensor].name);
      Unit& unit = units[{StageOf(streams_[s]), NodeOf(streams_[s])}][{positions[module], module}];
      unit.streams.push_back(s);
      unit.bytes += Aligned(packer.bytes);
    }
    std::map<std::pair<int32_t, std::string>, std::deque<OpenBucket>> by_root;
    for (const auto& [root, modules] : units) {
      std::deque<OpenBucket>& buckets = by_root[root];
      for (const auto& [key, unit] : modules) {
        if (buckets.empty() || buckets.back().bytes + unit.bytes > bucket_bytes_) {
          buckets.emplace_back();
        }
        OpenBucket& bucket = buckets.back();
        bucket.streams.insert(bucket.streams.end(), unit.streams.begin(), unit.streams.end());
        bucket.bytes += unit.bytes;
      }
    }
    return by_root;
  }

  void Emit(uint32_t communicator, const OpenBucket& open) {
    const std::vector<std::string>& members = out_.communicators[communicator].members;
    BroadcastBucket bucket;
    bucket.communicator = communicator;
    const std::string& root = NodeOf(streams_[open.streams.front()]);
    bucket.root = static_cast<uint32_t>(std::lower_bound(members.begin(), members.end(), root) -
                                        members.begin());
    bucket.bytes = open.bytes;
    bucket.streams = static_cast<uint32_t>(open.streams.size());
    const auto index = static_cast<uint32_t>(out_.buckets.size());
    out_.slots.resize(plan_.transfers.size());
    uint64_t offset = 0;
    for (uint32_t i = 0; i < bucket.streams; ++i) {
      const Stream& stream = streams_[open.streams[i]];
      for (TransferId id : stream.transfers) {
        out_.slots[id] = {index, i, offset, id == stream.packer};
      }
      offset += Aligned(PackerOf(stream).bytes);
    }
    out_.broadcast_bytes += bucket.bytes;
    out_.delivered_bytes += bucket.bytes * (members.size() - 1);
    out_.buckets.push_back(bucket);
  }

  const Plan& plan_;
  const TensorTable& tensors_;
  const absl::Span<const int32_t> stages_;
  const uint64_t bucket_bytes_;
  std::vector<Stream> streams_;
  BroadcastPlan out_;
};

}  // namespace

absl::StatusOr<BroadcastPlan> PlanBroadcast(const Plan& plan, const TensorTable& tensors,
                                            absl::Span<const int32_t> stages,
                                            uint64_t bucket_bytes) {
  if (bucket_bytes == 0) return absl::InvalidArgumentError("a bucket size of 0 bytes");
  if (stages.size() != plan.ranks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(stages.size(), " pipeline stages for ",
                                                   plan.ranks.size(), " ranks of a plan"));
  }
  for (const Transfer& t : plan.transfers) {
    if (t.waits_for.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "transfer ", t.id, " waits for others; a broadcast plan has no bytes passed on"));
  }
  return Planner(plan, tensors, stages, bucket_bytes).Run();
}

}  // namespace xfer
