// Where a byte of a transfer's stream lies: what kernels compute for each of their pieces. Plain
// code without CUDA, so that it is tested on any machine.
#ifndef XFER_AGENT_GPU_STRIDED_H_
#define XFER_AGENT_GPU_STRIDED_H_

#include <cstdint>

#if defined(__CUDACC__)
#define XFER_HOST_DEVICE __host__ __device__
#else
#define XFER_HOST_DEVICE
#endif
#if defined(__CUDA_ARCH__)
#define XFER_UNROLL _Pragma("unroll")
#define XFER_NO_UNROLL _Pragma("unroll 1")
#else
#define XFER_UNROLL
#define XFER_NO_UNROLL
#endif

namespace xfer::gpu {

inline constexpr uint32_t kMaxLevels = 4;

// A Copy (common/plan/plan.h) in a form that kernels read.
struct StridedCopy {
  uint64_t begin = 0;  // first byte in the stream
  uint64_t source = 0, destination = 0;
  uint64_t run = 0;
  uint32_t levels = 0;  // outermost first
  uint64_t count[kMaxLevels] = {};
  int64_t source_stride[kMaxLevels] = {};
  int64_t destination_stride[kMaxLevels] = {};
};

// Stream bytes [begin, end) of `copies` copies.
struct StridedRange {
  uint64_t begin = 0, end = 0;
  uint32_t copies = 0;
  StridedCopy first;                   // the only one, where there is one
  const StridedCopy* table = nullptr;  // all of them, where there are several
};

struct StridedPlace {
  uint64_t source = 0, destination = 0;  // offsets
  uint64_t left = 0;                     // bytes up to the run's end
};

// Requires range.begin <= at < range.end.
XFER_HOST_DEVICE inline StridedPlace Locate(const StridedRange& range, uint64_t at) {
  const StridedCopy* copy = &range.first;
  if (range.copies > 1) {
    uint32_t low = 0;
    uint32_t high = range.copies;  // the copy is in [low, high)
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (range.table[middle].begin <= at ? low : high) = middle;
    }
    copy = &range.table[low];
  }
  const uint64_t offset = at - copy->begin;
  uint64_t index = 0;
  // Divisions of 32 bits take a quarter of the time of those of 64 bits on a GPU.
  if ((offset | copy->run) >> 32 == 0) {
    index = static_cast<uint32_t>(offset) / static_cast<uint32_t>(copy->run);
  } else {
    index = offset / copy->run;
  }
  const uint64_t within = offset - index * copy->run;
  StridedPlace place{copy->source + within, copy->destination + within, copy->run - within};
  for (uint32_t level = copy->levels; level-- > 0;) {
    uint64_t step = index;
    if (level > 0) {
      const uint64_t count = copy->count[level];
      if ((index | count) >> 32 == 0) {
        index = static_cast<uint32_t>(index) / static_cast<uint32_t>(count);
      } else {
        index /= count;
      }
      step -= index * count;
    }
    place.source += step * static_cast<uint64_t>(copy->source_stride[level]);
    place.destination += step * static_cast<uint64_t>(copy->destination_stride[level]);
  }
  return place;
}

}  // namespace xfer::gpu

#endif  // XFER_AGENT_GPU_STRIDED_H_
