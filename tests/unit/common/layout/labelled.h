// Tensors whose every element has a label of its own, and the few array operations that a
// framework's loader or converter is written with. Slow and plain, so that it can be believed.
#ifndef XFER_TESTS_UNIT_COMMON_LAYOUT_LABELLED_H_
#define XFER_TESTS_UNIT_COMMON_LAYOUT_LABELLED_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/layout/layout.h"

namespace xfer {

// Row-major. Label 0 stands for padding, -1 for an element that nothing has set.
struct Array {
  Dims shape;
  std::vector<int64_t> v;

  friend bool operator==(const Array&, const Array&) = default;
};

// Parts along dimension 0 or 1 (of arrays with one or two dimensions): [first, first + count).
Array Rows(const Array& a, int64_t first, int64_t count);
Array Cols(const Array& a, int64_t first, int64_t count);
Array CatRows(const std::vector<Array>& arrays);
Array CatCols(const std::vector<Array>& arrays);
// Part `index` of `count` equal ones.
Array RowPart(const Array& a, int64_t index, int64_t count);
Array ColPart(const Array& a, int64_t index, int64_t count);
// Appends rows of padding up to `rows`.
Array PadRows(Array a, int64_t rows);
// Puts arrays of one shape under a new leading dimension.
Array Stack(const std::vector<Array>& arrays);

// By name: the framework's, or Hugging Face's.
using Arrays = std::map<std::string, Array>;

// Every tensor of the table with its own labels.
Arrays Labelled(const TensorTable& table);

// What a rank of this layout holds when every Hugging Face tensor is as in `hf`. Elements outside
// all parts are padding.
Arrays Materialise(const RankLayout& layout, const TensorTable& table, const Arrays& hf);

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COMMON_LAYOUT_LABELLED_H_
