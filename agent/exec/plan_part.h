// A node's part of a plan, as the executor works with it.
#ifndef XFER_AGENT_EXEC_PLAN_PART_H_
#define XFER_AGENT_EXEC_PLAN_PART_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "agent/exec/conversion.h"
#include "agent/memory/rank_table.h"
#include "common/plan/plan.h"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {

struct PartRank {
  RankId id;
  std::string node;
  uint64_t registration_id = 0;  // that the plan was made for
  bool local = false;            // on this node
};

struct PartTransfer {
  Transfer planned;
  std::unique_ptr<const ConvertedTransfer> converted;  // null: without conversion
  // The first or last of the transfers between its two ranks; both ends of it know.
  bool edge = false;
  bool sends = false;     // source on this node
  bool receives = false;  // destination on this node

  // What transports and digests see.
  const Transfer& wire() const { return converted == nullptr ? planned : converted->wire; }
};

// Immutable once built; thread-safe.
struct PlanPart {
  uint64_t plan_id = 0;
  std::string job;
  std::vector<PartRank> ranks;            // of the whole plan
  std::vector<PartTransfer> transfers;    // sorted by id
  std::vector<std::string> tensor_names;  // by tensor index
  // Transfers from this node, by destination node.
  std::map<std::string, std::vector<uint32_t>> sends;
  bool relays = false;  // some of them wait for arrivals

  // Index into `transfers`; nullopt: not of this part.
  std::optional<uint32_t> Find(TransferId id) const;
  // Hugging Face name; "tensor 12" where it is unknown.
  std::string TensorName(const Transfer& transfer) const;
  // "model.norm.weight from trainer 3 (node a) to engine 0 rank 1 (node b)"
  std::string Describe(const Transfer& transfer) const;
};

// Whether source and destination compare digests of this transfer; both come to the same answer.
bool IsVerified(v1::Verify verify, uint64_t sync_id, const PartTransfer& transfer);

// Puts a part together from its messages. InvalidArgument for what has no form: indices out of
// range, doubled ids, a cut stream, a wait for a transfer that does not arrive on this node.
class PlanPartBuilder {
 public:
  PlanPartBuilder(uint64_t plan_id, std::string node);
  absl::Status Add(const v1::PlanPart& message);
  absl::StatusOr<std::shared_ptr<const PlanPart>> Finish();

 private:
  absl::Status AddHeader(const v1::PlanHeader& header);
  absl::Status AddTransfer(const v1::Transfer& message);
  void MarkEdges();
  absl::Status CheckWaits() const;

  const std::string node_;
  std::shared_ptr<PlanPart> part_;
  bool has_header_ = false;
  uint32_t expected_ = 0;
};

// Pins of the part's ranks on this node, by rank index (null for those elsewhere).
// FailedPrecondition names a rank that is not registered, or under another registration than the
// plan was made for
// ("stale").
absl::StatusOr<std::vector<RankPin>> PinRanks(const PlanPart& part, const RankTable& ranks);

// Every run of every transfer inside the regions of this node's ranks, and regions that exist.
absl::Status CheckPart(const PlanPart& part, const std::vector<RankPin>& pins);

// The latest parts; thread-safe.
class PlanPartCache {
 public:
  explicit PlanPartCache(size_t capacity) : capacity_(capacity) {}
  std::shared_ptr<const PlanPart> Find(uint64_t plan_id);  // null: not held
  void Put(std::shared_ptr<const PlanPart> part);
  void Forget(uint64_t plan_id);

 private:
  const size_t capacity_;
  absl::Mutex mu_;
  std::vector<std::shared_ptr<const PlanPart>> parts_ ABSL_GUARDED_BY(mu_);  // newest use last
};

}  // namespace xfer

#endif  // XFER_AGENT_EXEC_PLAN_PART_H_
