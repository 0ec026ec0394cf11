// How many rows a vocabulary has in training.
#ifndef XFER_COMMON_MODEL_VOCABULARY_H_
#define XFER_COMMON_MODEL_VOCABULARY_H_

#include <cstdint>

#include "common/model/model.h"

namespace xfer {

// Megatron's rule: rounded up to a multiple of make_vocab_size_divisible_by * TP. The rows behind
// the true ones are padding; they are part of the ranks' tensors and never sent.
inline int64_t PaddedVocabulary(int64_t vocab_size, const TrainParallelism& train) {
  const int64_t unit = int64_t{train.vocab_divisor} * train.tp;
  return (vocab_size + unit - 1) / unit * unit;
}

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_VOCABULARY_H_
