#include "tests/unit/common/layout/labelled.h"

#include <utility>

#include "gtest/gtest.h"

namespace xfer {
namespace {

int64_t Width(const Array& a) { return a.shape.size() == 1 ? 1 : a.shape[1]; }

}  // namespace

Array Rows(const Array& a, int64_t first, int64_t count) {
  const int64_t w = Width(a);
  EXPECT_LE((first + count) * w, static_cast<int64_t>(a.v.size()));
  Array out{a.shape, {a.v.begin() + first * w, a.v.begin() + (first + count) * w}};
  out.shape[0] = count;
  return out;
}

Array Cols(const Array& a, int64_t first, int64_t count) {
  Array out{{a.shape[0], count}, {}};
  for (int64_t r = 0; r < a.shape[0]; ++r) {
    for (int64_t c = first; c < first + count; ++c) out.v.push_back(a.v.at(r * a.shape[1] + c));
  }
  return out;
}

Array CatRows(const std::vector<Array>& arrays) {
  Array out = arrays.front();
  for (size_t i = 1; i < arrays.size(); ++i) {
    EXPECT_EQ(Width(arrays[i]), Width(out));
    out.shape[0] += arrays[i].shape[0];
    out.v.insert(out.v.end(), arrays[i].v.begin(), arrays[i].v.end());
  }
  return out;
}

Array CatCols(const std::vector<Array>& arrays) {
  Array out{{arrays.front().shape[0], 0}, {}};
  for (const Array& a : arrays) out.shape[1] += a.shape[1];
  for (int64_t r = 0; r < out.shape[0]; ++r) {
    for (const Array& a : arrays) {
      for (int64_t c = 0; c < a.shape[1]; ++c) out.v.push_back(a.v.at(r * a.shape[1] + c));
    }
  }
  return out;
}

Array RowPart(const Array& a, int64_t index, int64_t count) {
  EXPECT_EQ(a.shape[0] % count, 0);
  return Rows(a, index * (a.shape[0] / count), a.shape[0] / count);
}

Array ColPart(const Array& a, int64_t index, int64_t count) {
  EXPECT_EQ(a.shape[1] % count, 0);
  return Cols(a, index * (a.shape[1] / count), a.shape[1] / count);
}

Array PadRows(Array a, int64_t rows) {
  a.v.resize(rows * Width(a), 0);
  a.shape[0] = rows;
  return a;
}

Array Stack(const std::vector<Array>& arrays) {
  Array out{arrays.front().shape, {}};
  out.shape.insert(out.shape.begin(), static_cast<int64_t>(arrays.size()));
  for (const Array& a : arrays) out.v.insert(out.v.end(), a.v.begin(), a.v.end());
  return out;
}

Arrays Labelled(const TensorTable& table) {
  Arrays out;
  int64_t label = 1;
  for (const TensorInfo& info : table.all()) {
    Array a{info.shape, {}};
    for (int64_t i = 0; i < NumElements(info.shape); ++i) a.v.push_back(label++);
    out[info.name] = std::move(a);
  }
  return out;
}

Arrays Materialise(const RankLayout& layout, const TensorTable& table, const Arrays& hf) {
  Arrays out;
  for (const LocalTensor& tensor : layout.tensors) {
    Array local{tensor.shape, std::vector<int64_t>(NumElements(tensor.shape), 0)};
    for (const Part& part : tensor.parts) {
      const Array& source = hf.at(table[part.tensor].name);
      const size_t dims = source.shape.size();
      const size_t lead = tensor.shape.size() - dims;
      for (int64_t i = 0; i < part.hf.NumElements(); ++i) {
        int64_t rest = i;
        int64_t from = 0, from_step = 1;
        int64_t to = 0, to_step = 1;
        for (size_t d = dims; d-- > 0;) {
          const int64_t at = rest % part.hf.extent[d];
          rest /= part.hf.extent[d];
          from += (part.hf.start[d] + at) * from_step;
          to += (part.local_start[lead + d] + at) * to_step;
          from_step *= source.shape[d];
          to_step *= tensor.shape[lead + d];
        }
        for (size_t d = lead; d-- > 0;) {
          to += part.local_start[d] * to_step;
          to_step *= tensor.shape[d];
        }
        local.v.at(to) = source.v.at(from);
      }
    }
    EXPECT_TRUE(out.emplace(tensor.name, std::move(local)).second) << tensor.name;
  }
  return out;
}

}  // namespace xfer
