// Turns the rows of an architecture (common/model/arch) into one rank's layout. What is common to
// ecosystems is here; what differs between them (names of ranks, stages, the vocabulary) is in
// their files.
#ifndef XFER_COMMON_LAYOUT_BUILDER_H_
#define XFER_COMMON_LAYOUT_BUILDER_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/layout/layout.h"
#include "common/model/arch/architecture.h"

namespace xfer {

// Part number `index` of `count` equal ones.
struct Slice {
  int64_t index = 0;
  int64_t count = 1;
};

// Not thread-safe; `config` and `table` must outlive it. Its errors are Internal: the numbers have
// passed Validate(), so they say that rows and table disagree.
class LayoutBuilder {
 public:
  LayoutBuilder(const HfConfig& config, const TensorTable& table)
      : config_(config), table_(table) {}

  void SetSlice(Shard shard, Slice slice) { slices_[static_cast<size_t>(shard)] = slice; }
  // The rank holds experts [first, first + count) of every layer with experts.
  void SetExperts(int64_t first, int64_t count) {
    first_expert_ = first;
    experts_ = count;
  }

  // Adds the tensors of `rows`, `prefix` before their names and `hf_prefix` before their sources'.
  absl::Status AddRows(absl::Span<const FrameworkTensor> rows, absl::string_view hf_prefix,
                       absl::string_view prefix);
  // Adds Hugging Face tensor `hf` whole.
  absl::Status AddWhole(absl::string_view name, absl::string_view hf);
  // Adds the rows [slice] of Hugging Face tensor `hf`, whose first dimension was padded to
  // `padded_rows` before it was cut.
  absl::Status AddVocabulary(absl::string_view name, absl::string_view hf, int64_t padded_rows,
                             Slice slice);

  RankLayout Take() && { return std::move(layout_); }

 private:
  struct Resolved {
    TensorId tensor;
    Box box;  // this rank's part
  };

  absl::StatusOr<TensorId> Find(absl::string_view name) const;
  absl::Status AddRow(const FrameworkTensor& row, absl::string_view hf_prefix,
                      absl::string_view prefix, std::string name, int64_t expert);
  absl::Status AddSlots(const FrameworkTensor& row, absl::string_view hf_prefix, std::string name);
  // The rank's parts of the row's sources, {e} standing for `expert`.
  absl::Status Resolve(const FrameworkTensor& row, absl::string_view hf_prefix, int64_t expert,
                       std::vector<Resolved>& out) const;
  // Appends `sources` to `tensor`, one behind the other along dimension `lead`, at expert slot
  // `slot` where `lead` is 1; returns their rows together.
  static int64_t Stack(const std::vector<Resolved>& sources, int lead, int64_t slot,
                       LocalTensor& tensor);
  void QkvGroups(const std::vector<Resolved>& sources, LocalTensor& tensor) const;
  void HalfSwap(const Resolved& source, LocalTensor& tensor) const;
  DType DTypeOf(const FrameworkTensor& row, const std::vector<Resolved>& sources) const;

  const HfConfig& config_;
  const TensorTable& table_;
  std::array<Slice, kShards> slices_;
  int64_t first_expert_ = 0;
  int64_t experts_ = 0;
  RankLayout layout_;
};

// FailedPrecondition where the checkpoint is quantised: `ecosystem`'s layout of scale tensors is
// not there.
absl::Status RefuseQuantised(const HfConfig& config, absl::string_view ecosystem);

}  // namespace xfer

#endif  // XFER_COMMON_LAYOUT_BUILDER_H_
