#include "common/model/dtype.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace xfer {
namespace {

struct Row {
  DType dtype;
  int64_t size;
  absl::string_view name;   // safetensors
  absl::string_view torch;  // torch, as config.json spells it
};

constexpr std::array<Row, 12> kRows = {{
    {DType::kBF16, 2, "BF16", "bfloat16"},
    {DType::kF16, 2, "F16", "float16"},
    {DType::kF32, 4, "F32", "float32"},
    {DType::kF8E4M3, 1, "F8_E4M3", "float8_e4m3fn"},
    {DType::kF8E5M2, 1, "F8_E5M2", "float8_e5m2"},
    {DType::kI8, 1, "I8", "int8"},
    {DType::kU8, 1, "U8", "uint8"},
    {DType::kI32, 4, "I32", "int32"},
    {DType::kI64, 8, "I64", "int64"},
    {DType::kF64, 8, "F64", "float64"},
    {DType::kBool, 1, "BOOL", "bool"},
    {DType::kI16, 2, "I16", "int16"},
}};

// Row i holds the dtype numbered i + 1, so that a lookup is an index.
constexpr bool RowsAreInOrder() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(RowsAreInOrder());

}  // namespace

int64_t SizeOf(DType dtype) { return kRows[static_cast<size_t>(dtype) - 1].size; }

absl::string_view Name(DType dtype) { return kRows[static_cast<size_t>(dtype) - 1].name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  const absl::string_view torch = absl::StripPrefix(name, "torch.");
  std::string known;
  for (const Row& row : kRows) {
    if (name == row.name || torch == row.torch) return row.dtype;
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown element type \"", name, "\"; known are ", known));
}

}  // namespace xfer
