#include "common/model/tensor_table.h"

#include <cstdlib>
#include <utility>

#include "spdlog/spdlog.h"

namespace xfer {

TensorId TensorTable::Add(std::string name, DType dtype, Dims shape) {
  const TensorId id = size();
  const bool is_new = by_name_.emplace(name, id).second;
  if (!is_new) {
    // Two ids for one name would let a piece be sent to the wrong tensor: a programming error.
    spdlog::critical("TensorTable::Add: \"{}\" is in the table already", name);
    std::abort();
  }
  tensors_.push_back({std::move(name), dtype, std::move(shape)});
  total_bytes_ += tensors_.back().bytes();
  return id;
}

TensorId TensorTable::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? -1 : it->second;
}

}  // namespace xfer
