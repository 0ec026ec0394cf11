// Weights that follow from a seed, and versions of weights that follow from each other.
//
// Both are defined in Hugging Face coordinates (tensor name, linear index), so that a trainer that
// holds one slice, an engine that holds another and a checker that holds neither agree without
// talking. A tensor's elements form a byte stream; each 64-bit word of it comes from a
// counter-based hash of the tensor's key and the word's index, so any run can be made alone.
#ifndef XFER_COMMON_CHECKPOINT_VALUES_H_
#define XFER_COMMON_CHECKPOINT_VALUES_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/dtype.h"

namespace xfer {

// Changes whenever SynthesizeRun() or ChangeRun() would give other bytes.
inline constexpr int kValuesVersion = 1;

// Stands for a tensor in the functions below.
struct TensorKey {
  uint64_t value = 0;
  friend bool operator==(const TensorKey&, const TensorKey&) = default;
};
// The key for seeded values.
TensorKey SeededKey(absl::string_view hf_name, uint64_t seed);
// The key for version changes; no seed is in it, so that it can be known for any checkpoint.
TensorKey ChangeKey(absl::string_view hf_name);

// Elements [first_element, first_element + run.size() / SizeOf(dtype)) of a seeded tensor. Floating
// types get a random sign, an exponent of 2^-8 .. 2^-1 (F8: 2^-3 .. 2^0) and a random mantissa;
// other types get random bits (Bool: 0 or 1). `run` need not be aligned and holds whole elements.
// Thread-safe.
void SynthesizeRun(TensorKey key, DType dtype, uint64_t first_element, absl::Span<std::byte> run);

// Turns a run from one version into another, in place. Version 1 is the checkpoint as it is;
// version v is the checkpoint XOR a mask that depends on v, tensor and index and touches only sign
// and mantissa of floating types, so that no number becomes NaN or infinite (but an F8_E4M3 of 256
// or more may become NaN, which that format encodes as a mantissa). Any two versions differ in all
// elements but about one in 2^(sign and mantissa bits). Steps compose: 1 -> 2 -> 5 equals 1 -> 5.
// Thread-safe.
void ChangeRun(TensorKey key, DType dtype, uint64_t first_element, absl::Span<std::byte> run,
               uint64_t from_version, uint64_t to_version);

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_VALUES_H_
