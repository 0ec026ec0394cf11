// Small worlds for planner tests: ranks with real memory, filled from a function of (tensor,
// element), so that a plan can be carried out with memcpy and every byte be compared with a naive
// slice.
#ifndef XFER_TESTS_UNIT_COMMON_PLAN_PLAN_WORLD_H_
#define XFER_TESTS_UNIT_COMMON_PLAN_PLAN_WORLD_H_

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "common/plan/planner.h"

namespace xfer {

// Row-major strides without gaps, in bytes.
Dims PackedStrides(const Dims& extent, DType dtype);
// A piece that stands packed at `offset`.
Piece PackedPiece(TensorId tensor, Box box, uint64_t offset, DType dtype = DType::kBF16,
                  int32_t region = 0);
RankId Trainer(int32_t rank);
RankId Rollout(int32_t engine, int32_t rank);

// One rank's manifest, growing piece by piece.
struct TestRank {
  PlanRank rank;
  Manifest manifest;
  std::vector<std::vector<uint8_t>> memory;  // by region; empty until Fill()

  // Appends a packed piece behind all others of the region.
  void Hold(TensorId tensor, const Box& box, DType dtype = DType::kBF16, int32_t region = 0);
};

class World {
 public:
  TensorTable tensors;
  std::deque<TestRank> sources;
  std::deque<TestRank> destinations;
  std::vector<std::pair<std::string, int32_t>> nics;
  FanOut fan_out = FanOut::kNone;

  TestRank& AddSource(int32_t rank, const std::string& node, int32_t nic = 0);
  TestRank& AddDestination(int32_t engine, int32_t rank, const std::string& node, int32_t nic = 0);
  PlanInput Input() const;
  const TensorInfo& tensor(TensorId id) const { return tensors[id]; }

  // Gives every region its memory: sources the tensors' values, the rest a pattern.
  void Fill();
  // Carries out the transfers in EagerOrder(), checking each by itself: CheckTransfer(), the
  // stream's bytes and order, no byte written twice. Records a test failure where something is
  // wrong.
  void Execute(const Plan& plan);
  // Compares every byte of every destination region: values where a piece is, the pattern
  // elsewhere.
  void ExpectDelivered() const;

  // Bytes that leave each source's NIC for another node, by source in Plan::ranks order.
  static std::vector<uint64_t> WireBytesBySource(const Plan& plan);

 private:
  void ExecuteOne(const Transfer& transfer, const std::vector<uint8_t>& from,
                  std::vector<uint8_t>& to, std::vector<bool>& seen) const;
  std::vector<std::vector<uint8_t>> Blank(const Manifest& manifest) const;
  void Write(const Piece& piece, std::vector<std::vector<uint8_t>>& memory) const;
};

// All transfers in an order that `waits_for` allows and that is hardest on a wait too few: whatever
// may start does so at once. Shorter than the plan where transfers wait for each other.
std::vector<const Transfer*> EagerOrder(const Plan& plan);

// The bytes of element `index` (row-major number in the whole tensor) as type `dtype`. Values are
// small whole numbers in floating types, so that conversions between those are exact.
void ElementBytes(TensorId tensor, int64_t index, DType dtype, uint8_t* out);
// Row-major numbers in the whole tensor of the elements of a box, in row-major order of the box.
std::vector<int64_t> ElementsOf(const Box& box, const Dims& shape);

// A random partition of `whole` into at most about `parts` boxes.
std::vector<Box> RandomPartition(const Box& whole, int parts, std::mt19937& rng);
// Lays pieces out in a region with random order, gaps and dimension order.
void PlaceRandomly(std::vector<Piece>& pieces, Manifest& manifest, std::mt19937& rng);

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COMMON_PLAN_PLAN_WORLD_H_
