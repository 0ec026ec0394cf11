// A job small enough to read: a few trainers, a few engines, two tensors.
#ifndef XFER_TESTS_UNIT_COORDINATOR_SMALL_JOB_H_
#define XFER_TESTS_UNIT_COORDINATOR_SMALL_JOB_H_

#include <memory>
#include <string>
#include <utility>

#include "coordinator/registry/registry.h"

namespace xfer {

inline constexpr int64_t kRows = 8;
inline constexpr int64_t kColumns = 16;

inline ModelSpec SmallSpec(int trainers, int engines, int ranks_per_engine) {
  ModelSpec spec;
  spec.name = "small";
  spec.train.world = trainers;
  spec.rollout.world = engines * ranks_per_engine;
  spec.rollout.gpus_per_engine = ranks_per_engine;
  spec.transfer_timeout_s = 20;
  return spec;
}

inline TensorTable SmallTable() {
  TensorTable table;
  table.Add("model.first.weight", DType::kBF16, Dims{kRows, kColumns});
  table.Add("model.second.weight", DType::kBF16, Dims{kRows, kColumns});
  return table;
}

// Rows [part, part + 1) / parts of both tensors, one behind the other in one region.
inline Manifest SmallManifest(int part, int parts) {
  Manifest manifest;
  const int64_t rows = kRows / parts;
  const uint64_t bytes = static_cast<uint64_t>(rows * kColumns) * 2;
  for (TensorId tensor = 0; tensor < 2; ++tensor) {
    Piece piece;
    piece.tensor = tensor;
    piece.box = {Dims{part * rows, 0}, Dims{rows, kColumns}};
    piece.dtype = DType::kBF16;
    piece.region = 0;
    piece.offset = bytes * static_cast<uint64_t>(tensor);
    piece.strides = Dims{kColumns * 2, 2};
    manifest.pieces.push_back(piece);
  }
  manifest.region_bytes = {2 * bytes};
  return manifest;
}

inline RankEntry SmallRank(const RankId& id, int part, int parts, const std::string& node,
                           uint64_t registration_id = 1) {
  RankEntry rank;
  rank.id = id;
  rank.node = node;
  rank.incarnation = 7;
  rank.registration_id = registration_id;
  rank.pid = 100;
  rank.manifest = std::make_shared<const Manifest>(SmallManifest(part, parts));
  if (id.role == Role::kTrainer) rank.ready_version = 1;
  return rank;
}

inline RankEntry SmallTrainer(int rank, int world, const std::string& node,
                              uint64_t registration_id = 1) {
  return SmallRank({Role::kTrainer, 0, rank}, rank, world, node, registration_id);
}

inline RankEntry SmallRollout(int engine, int rank, int ranks, const std::string& node,
                              uint64_t registration_id = 1) {
  return SmallRank({Role::kRollout, engine, rank}, rank, ranks, node, registration_id);
}

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COORDINATOR_SMALL_JOB_H_
