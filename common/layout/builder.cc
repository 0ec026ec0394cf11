#include "common/layout/builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// `name` with the expert's number in place of {e}.
std::string WithExpert(absl::string_view name, int64_t expert) {
  const size_t at = name.find(kExpert);
  if (at == absl::string_view::npos) return std::string(name);
  return absl::StrCat(name.substr(0, at), expert, name.substr(at + kExpert.size()));
}

// Rows [first, first + count) of a part.
Box Rows(const Box& box, int64_t first, int64_t count) {
  Box out = box;
  out.start[0] += first;
  out.extent[0] = count;
  return out;
}

// Index of the first element of row `row` in a tensor of `dims` dimensions.
Dims RowStart(size_t dims, int64_t row) {
  Dims out(dims, 0);
  out[0] = row;
  return out;
}

}  // namespace

absl::StatusOr<TensorId> LayoutBuilder::Find(absl::string_view name) const {
  const TensorId id = table_.Find(name);
  if (id >= 0) return id;
  return absl::InternalError(absl::StrCat("the table of ", config_.architecture, " has no tensor ",
                                          name, ", which a layout rule asks for"));
}

absl::Status LayoutBuilder::Resolve(const FrameworkTensor& row, absl::string_view hf_prefix,
                                    int64_t expert, std::vector<Resolved>& out) const {
  out.clear();
  for (const Source& source : row.sources) {
    if (source.hf.empty()) break;
    const std::string name = absl::StrCat(hf_prefix, WithExpert(source.hf, expert));
    XFER_ASSIGN_OR_RETURN(const TensorId id, Find(name));
    Box box = Box::Whole(table_[id].shape);
    const Slice slice = slices_[static_cast<size_t>(source.shard)];
    if (slice.count > 1) {
      int64_t& extent = box.extent[row.cut];
      if (extent % slice.count != 0) {
        return absl::InternalError(absl::StrCat(name, ": dimension ", row.cut, " has ", extent,
                                                " elements, which ", slice.count,
                                                " ranks cannot share evenly"));
      }
      extent /= slice.count;
      box.start[row.cut] = slice.index * extent;
    }
    out.push_back({id, std::move(box)});
  }
  return absl::OkStatus();
}

DType LayoutBuilder::DTypeOf(const FrameworkTensor& row,
                             const std::vector<Resolved>& sources) const {
  return row.float32 ? DType::kF32 : table_[sources.front().tensor].dtype;
}

int64_t LayoutBuilder::Stack(const std::vector<Resolved>& sources, int lead, int64_t slot,
                             LocalTensor& tensor) {
  int64_t rows = 0;
  for (const Resolved& source : sources) {
    Dims start(source.box.extent.size() + lead, 0);
    if (lead == 1) start[0] = slot;
    start[lead] = rows;
    rows += source.box.extent[0];
    tensor.parts.push_back({source.tensor, source.box, std::move(start)});
  }
  return rows;
}

void LayoutBuilder::QkvGroups(const std::vector<Resolved>& sources, LocalTensor& tensor) const {
  const int64_t d = config_.head_dim;
  const int64_t queries = config_.num_attention_heads / config_.num_key_value_heads;
  const int64_t groups = sources[1].box.extent[0] / d;
  const size_t dims = sources[0].box.extent.size();
  int64_t row = 0;
  const auto add = [&](const Resolved& source, int64_t first, int64_t count) {
    tensor.parts.push_back({source.tensor, Rows(source.box, first, count), RowStart(dims, row)});
    row += count;
  };
  for (int64_t g = 0; g < groups; ++g) {
    add(sources[0], g * queries * d, queries * d);
    add(sources[1], g * d, d);
    add(sources[2], g * d, d);
  }
  tensor.shape[0] = row;
}

void LayoutBuilder::HalfSwap(const Resolved& source, LocalTensor& tensor) const {
  const int64_t d = config_.index_head_dim;
  const size_t dims = source.box.extent.size();
  for (int64_t head = 0; head < source.box.extent[0]; head += d) {
    tensor.parts.push_back(
        {source.tensor, Rows(source.box, head, d / 2), RowStart(dims, head + d / 2)});
    tensor.parts.push_back(
        {source.tensor, Rows(source.box, head + d / 2, d / 2), RowStart(dims, head)});
  }
}

absl::Status LayoutBuilder::AddRow(const FrameworkTensor& row, absl::string_view hf_prefix,
                                   absl::string_view prefix, std::string name, int64_t expert) {
  std::vector<Resolved> sources;
  XFER_RETURN_IF_ERROR(Resolve(row, hf_prefix, expert, sources));
  LocalTensor tensor;
  tensor.name = absl::StrCat(prefix, name);
  tensor.dtype = DTypeOf(row, sources);
  tensor.shape = sources.front().box.extent;
  if (!row.fused.empty()) tensor.fused_group = absl::StrCat(hf_prefix, row.fused);
  if (row.order == Order::kQkvGroups) {
    QkvGroups(sources, tensor);
  } else if (row.order == Order::kHalfSwap && config_.indexer_rope_interleave) {
    HalfSwap(sources.front(), tensor);
  } else {
    tensor.shape[0] = Stack(sources, /*lead=*/0, /*slot=*/0, tensor);
  }
  layout_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status LayoutBuilder::AddSlots(const FrameworkTensor& row, absl::string_view hf_prefix,
                                     std::string name) {
  LocalTensor tensor;
  tensor.name = std::move(name);
  tensor.parts.reserve(experts_ * row.sources.size());
  std::vector<Resolved> sources;
  for (int64_t slot = 0; slot < experts_; ++slot) {
    XFER_RETURN_IF_ERROR(Resolve(row, hf_prefix, first_expert_ + slot, sources));
    const int64_t rows = Stack(sources, /*lead=*/1, slot, tensor);
    tensor.shape = {experts_, rows, sources.front().box.extent[1]};
  }
  tensor.dtype = DTypeOf(row, sources);
  if (!row.fused.empty()) tensor.fused_group = absl::StrCat(hf_prefix, row.fused);
  layout_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status LayoutBuilder::AddRows(absl::Span<const FrameworkTensor> rows,
                                    absl::string_view hf_prefix, absl::string_view prefix) {
  for (const FrameworkTensor& row : rows) {
    if (row.when != nullptr && !row.when(config_)) continue;
    const bool per_expert = absl::StrContains(row.name, kExpert);
    if (!per_expert && absl::StrContains(row.sources.front().hf, kExpert)) {
      XFER_RETURN_IF_ERROR(AddSlots(row, hf_prefix, absl::StrCat(prefix, row.name)));
      continue;
    }
    for (int64_t e = 0; e < (per_expert ? experts_ : 1); ++e) {
      XFER_RETURN_IF_ERROR(
          AddRow(row, hf_prefix, prefix, WithExpert(row.name, e), first_expert_ + e));
    }
  }
  return absl::OkStatus();
}

absl::Status LayoutBuilder::AddWhole(absl::string_view name, absl::string_view hf) {
  XFER_ASSIGN_OR_RETURN(const TensorId id, Find(hf));
  const Dims& shape = table_[id].shape;
  layout_.tensors.push_back({.name = std::string(name),
                             .dtype = table_[id].dtype,
                             .shape = shape,
                             .parts = {{id, Box::Whole(shape), Dims(shape.size(), 0)}}});
  return absl::OkStatus();
}

absl::Status LayoutBuilder::AddVocabulary(absl::string_view name, absl::string_view hf,
                                          int64_t padded_rows, Slice slice) {
  XFER_ASSIGN_OR_RETURN(const TensorId id, Find(hf));
  const Dims& shape = table_[id].shape;
  const int64_t rows = padded_rows / slice.count;
  const int64_t first = slice.index * rows;
  // A rank can stand wholly behind the true rows; it then holds padding only.
  const int64_t held = std::clamp<int64_t>(shape[0] - first, 0, rows);
  LocalTensor tensor{.name = std::string(name), .dtype = table_[id].dtype, .shape = shape};
  tensor.shape[0] = rows;
  tensor.padding_elements = (rows - held) * shape[1];
  if (held > 0) {
    tensor.parts.push_back({id, Rows(Box::Whole(shape), first, held), Dims(shape.size(), 0)});
  }
  layout_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status RefuseQuantised(const HfConfig& config, absl::string_view ecosystem) {
  if (!config.fp8_block.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "quantization_config: ", ecosystem, " layouts of fp8 models with ", (*config.fp8_block)[0],
      " x ", (*config.fp8_block)[1],
      " blocks are not supported; use the bf16 model (drop quantization_config on both sides)"));
}

}  // namespace xfer
