#include "tests/unit/common/plan/plan_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

namespace xfer {
namespace {

constexpr uint8_t kPattern = 0xA5;

// Calls fn(offset) for each element of a piece's part `box`, in row-major order.
template <typename Fn>
void ForEachOffset(const Piece& piece, const Box& box, Fn fn) {
  Dims index(box.start.size(), 0);
  uint64_t offset = piece.offset;
  for (size_t d = 0; d < index.size(); ++d) {
    offset += (box.start[d] - piece.box.start[d]) * piece.strides[d];
  }
  for (int64_t n = box.NumElements(); n > 0; --n) {
    fn(offset);
    for (size_t d = index.size(); d-- > 0;) {
      offset += piece.strides[d];
      if (++index[d] < box.extent[d]) break;
      offset -= box.extent[d] * piece.strides[d];
      index[d] = 0;
    }
  }
}

uint16_t HighHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Whole numbers 0 .. 127 as half precision.
uint16_t HalfOf(int value) {
  if (value == 0) return 0;
  int exponent = 0;
  while (value >> (exponent + 1)) ++exponent;
  return static_cast<uint16_t>((exponent + 15) << 10 | ((value << (10 - exponent)) & 0x3ff));
}

// Reads an element as the whole number it stands for; floating types only.
int ValueOf(const uint8_t* at, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, 4);
    return static_cast<int>(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (dtype == DType::kBF16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return static_cast<int>(value);
  }
  if (bits == 0) return 0;
  return ((bits & 0x3ff) | 0x400) >> (10 - ((bits >> 10) - 15));
}

void PutValue(int value, DType dtype, uint8_t* out) {
  const float real = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(out, &real, 4);
  } else {
    const uint16_t bits = dtype == DType::kBF16 ? HighHalf(real) : HalfOf(value);
    std::memcpy(out, &bits, 2);
  }
}

// Naive expansion of a transfer: calls fn(source, destination) for each element.
template <typename Fn>
void ForEachElement(const Transfer& transfer, Fn fn) {
  const uint64_t from = SizeOf(transfer.conversion.from);
  const uint64_t to = SizeOf(transfer.conversion.to);
  for (const Copy& copy : transfer.copies) {
    for (uint64_t r = 0; r < copy.runs(); ++r) {
      uint64_t rest = r;
      uint64_t source = copy.source_offset;
      uint64_t destination = copy.destination_offset;
      for (size_t l = copy.levels.size(); l-- > 0;) {
        const CopyLevel& level = copy.levels[l];
        source += rest % level.count * level.source_stride;
        destination += rest % level.count * level.destination_stride;
        rest /= level.count;
      }
      for (uint64_t e = 0; e < copy.run / to; ++e) fn(source + e * from, destination + e * to);
    }
  }
}

}  // namespace

Dims PackedStrides(const Dims& extent, DType dtype) {
  Dims strides(extent.size());
  int64_t step = SizeOf(dtype);
  for (size_t d = extent.size(); d-- > 0;) {
    strides[d] = step;
    step *= extent[d];
  }
  return strides;
}

Piece PackedPiece(TensorId tensor, Box box, uint64_t offset, DType dtype, int32_t region) {
  Piece piece;
  piece.tensor = tensor;
  piece.strides = PackedStrides(box.extent, dtype);
  piece.box = std::move(box);
  piece.dtype = dtype;
  piece.region = region;
  piece.offset = offset;
  return piece;
}

RankId Trainer(int32_t rank) { return {Role::kTrainer, 0, rank}; }
RankId Rollout(int32_t engine, int32_t rank) { return {Role::kRollout, engine, rank}; }

void TestRank::Hold(TensorId tensor, const Box& box, DType dtype, int32_t region) {
  if (manifest.region_bytes.size() <= static_cast<size_t>(region)) {
    manifest.region_bytes.resize(region + 1, 0);
  }
  uint64_t& end = manifest.region_bytes[region];
  manifest.pieces.push_back(PackedPiece(tensor, box, end, dtype, region));
  end += box.NumElements() * SizeOf(dtype);
}

TestRank& World::AddSource(int32_t rank, const std::string& node, int32_t nic) {
  sources.push_back({{Trainer(rank), node, nic}, {}, {}});
  return sources.back();
}

TestRank& World::AddDestination(int32_t engine, int32_t rank, const std::string& node,
                                int32_t nic) {
  destinations.push_back({{Rollout(engine, rank), node, nic}, {}, {}});
  return destinations.back();
}

PlanInput World::Input() const {
  PlanInput input;
  input.generation = 7;
  input.tensors = &tensors;
  for (const TestRank& rank : sources) input.sources.push_back({rank.rank, &rank.manifest});
  for (const TestRank& rank : destinations) {
    input.destinations.push_back({rank.rank, &rank.manifest});
  }
  input.nics = nics;
  input.fan_out = fan_out;
  return input;
}

void ElementBytes(TensorId tensor, int64_t index, DType dtype, uint8_t* out) {
  uint64_t hash = (static_cast<uint64_t>(tensor) << 40 | static_cast<uint64_t>(index)) + 1;
  hash *= 0x9e3779b97f4a7c15;
  hash ^= hash >> 29;
  hash *= 0xbf58476d1ce4e5b9;
  hash ^= hash >> 32;
  if (dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32) {
    PutValue(static_cast<int>(hash % 128), dtype, out);
  } else {
    std::memcpy(out, &hash, SizeOf(dtype));
  }
}

std::vector<int64_t> ElementsOf(const Box& box, const Dims& shape) {
  // A packed piece of the whole tensor with one byte an element has offsets that are element
  // numbers.
  Piece piece = PackedPiece(0, Box::Whole(shape), 0, DType::kU8);
  std::vector<int64_t> out;
  out.reserve(box.NumElements());
  ForEachOffset(piece, box, [&](uint64_t offset) { out.push_back(static_cast<int64_t>(offset)); });
  return out;
}

void World::Write(const Piece& piece, std::vector<std::vector<uint8_t>>& memory) const {
  const std::vector<int64_t> elements = ElementsOf(piece.box, tensors[piece.tensor].shape);
  size_t next = 0;
  ForEachOffset(piece, piece.box, [&](uint64_t offset) {
    ElementBytes(piece.tensor, elements[next++], piece.dtype, &memory[piece.region][offset]);
  });
}

std::vector<std::vector<uint8_t>> World::Blank(const Manifest& manifest) const {
  std::vector<std::vector<uint8_t>> memory;
  for (uint64_t bytes : manifest.region_bytes) memory.emplace_back(bytes, kPattern);
  return memory;
}

void World::Fill() {
  for (TestRank& rank : sources) {
    rank.memory = Blank(rank.manifest);
    for (const Piece& piece : rank.manifest.pieces) Write(piece, rank.memory);
  }
  for (TestRank& rank : destinations) rank.memory = Blank(rank.manifest);
}

std::vector<const Transfer*> EagerOrder(const Plan& plan) {
  std::vector<const Transfer*> out;
  std::vector<size_t> waits(plan.transfers.size(), 0);
  std::vector<std::vector<TransferId>> releases(plan.transfers.size());
  std::vector<TransferId> ready;
  for (const Transfer& transfer : plan.transfers) {
    waits[transfer.id] = transfer.waits_for.size();
    for (TransferId id : transfer.waits_for) releases[id].push_back(transfer.id);
    if (waits[transfer.id] == 0) ready.push_back(transfer.id);
  }
  // Last in, first out: what has just been released goes before all that was ready from the start.
  std::stable_sort(ready.begin(), ready.end(), [&](TransferId a, TransferId b) {
    return plan.transfers[a].source < plan.transfers[b].source;
  });
  while (!ready.empty()) {
    const TransferId id = ready.back();
    ready.pop_back();
    out.push_back(&plan.transfers[id]);
    for (TransferId next : releases[id]) {
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
  return out;
}

void World::Execute(const Plan& plan) {
  std::map<RankId, TestRank*> by_id;
  for (TestRank& rank : sources) by_id[rank.rank.id] = &rank;
  for (TestRank& rank : destinations) by_id[rank.rank.id] = &rank;
  std::map<std::pair<TestRank*, int32_t>, std::vector<bool>> written;
  const std::vector<const Transfer*> order = EagerOrder(plan);
  ASSERT_EQ(order.size(), plan.transfers.size()) << "transfers wait for each other";
  for (const Transfer* transfer : order) {
    TestRank* source = by_id.at(plan.ranks[transfer->source].id);
    TestRank* destination = by_id.at(plan.ranks[transfer->destination].id);
    std::vector<bool>& seen = written[{destination, transfer->destination_region}];
    seen.resize(destination->memory[transfer->destination_region].size(), false);
    ExecuteOne(*transfer, source->memory[transfer->source_region],
               destination->memory[transfer->destination_region], seen);
    if (::testing::Test::HasFailure()) return;
  }
}

void World::ExecuteOne(const Transfer& transfer, const std::vector<uint8_t>& from,
                       std::vector<uint8_t>& to, std::vector<bool>& seen) const {
  const absl::Status checked = CheckTransfer(transfer, from.size(), to.size());
  ASSERT_TRUE(checked.ok()) << checked;
  const uint64_t size = SizeOf(transfer.conversion.to);
  const std::vector<int64_t> elements = ElementsOf(transfer.box, tensors[transfer.tensor].shape);
  ASSERT_EQ(transfer.bytes, elements.size() * size);
  std::vector<uint8_t> expected(transfer.bytes);
  for (size_t e = 0; e < elements.size(); ++e) {
    ElementBytes(transfer.tensor, elements[e], transfer.conversion.to, &expected[e * size]);
  }
  std::vector<uint8_t> stream;
  stream.reserve(transfer.bytes);
  const auto put = [&](uint64_t at, const uint8_t* data, uint64_t bytes) {
    const auto first = seen.begin() + static_cast<int64_t>(at);
    ASSERT_EQ(std::find(first, first + bytes, true), first + bytes) << "byte written twice";
    std::fill(first, first + bytes, true);
    std::memcpy(&to[at], data, bytes);
    stream.insert(stream.end(), data, data + bytes);
  };
  if (transfer.conversion.none()) {
    ForEachRun(transfer, 0, transfer.bytes,
               [&](uint64_t s, uint64_t d, uint64_t bytes) { put(d, &from[s], bytes); });
  } else {
    ForEachElement(transfer, [&](uint64_t s, uint64_t d) {
      uint8_t element[8];
      PutValue(ValueOf(&from[s], transfer.conversion.from), transfer.conversion.to, element);
      put(d, element, size);
    });
  }
  ASSERT_TRUE(stream == expected) << "stream of transfer " << transfer.id
                                  << " is not the box's bytes in row-major order";
}

void World::ExpectDelivered() const {
  for (const TestRank& rank : destinations) {
    std::vector<std::vector<uint8_t>> expected = Blank(rank.manifest);
    for (const Piece& piece : rank.manifest.pieces) Write(piece, expected);
    ASSERT_TRUE(rank.memory == expected) << rank.rank.id.ToString();
  }
}

std::vector<uint64_t> World::WireBytesBySource(const Plan& plan) {
  std::vector<uint64_t> out(plan.ranks.size(), 0);
  for (const Transfer& transfer : plan.transfers) {
    if (plan.ranks[transfer.source].node == plan.ranks[transfer.destination].node) continue;
    out[transfer.source] += transfer.bytes;
  }
  while (!out.empty() && plan.ranks[out.size() - 1].id.role == Role::kRollout) out.pop_back();
  return out;
}

std::vector<Box> RandomPartition(const Box& whole, int parts, std::mt19937& rng) {
  std::vector<Box> out = {whole};
  for (int i = 1; i < parts && !whole.start.empty(); ++i) {
    const size_t at = rng() % out.size();
    const size_t d = rng() % whole.start.size();
    if (out[at].extent[d] < 2) continue;
    const int64_t cut = 1 + static_cast<int64_t>(rng() % (out[at].extent[d] - 1));
    Box rest = out[at];
    rest.start[d] += cut;
    rest.extent[d] -= cut;
    out[at].extent[d] = cut;
    out.push_back(rest);
  }
  return out;
}

void PlaceRandomly(std::vector<Piece>& pieces, Manifest& manifest, std::mt19937& rng) {
  std::shuffle(pieces.begin(), pieces.end(), rng);
  const int regions = 1 + static_cast<int>(rng() % 2);
  manifest.region_bytes.resize(regions, 0);
  for (Piece& piece : pieces) {
    piece.region = static_cast<int32_t>(rng() % regions);
    uint64_t& end = manifest.region_bytes[piece.region];
    end += rng() % 3 == 0 ? rng() % 40 : 0;
    piece.offset = end;
    std::vector<size_t> order(piece.box.extent.size());  // innermost first
    std::iota(order.rbegin(), order.rend(), 0);
    if (rng() % 4 == 0) std::shuffle(order.begin(), order.end(), rng);
    int64_t step = SizeOf(piece.dtype);
    piece.strides = Dims(order.size());
    for (size_t d : order) {
      if (rng() % 4 == 0) step += static_cast<int64_t>(rng() % 9);
      piece.strides[d] = step;
      step *= piece.box.extent[d];
    }
    end += step;
    manifest.pieces.push_back(piece);
  }
}

}  // namespace xfer
