#include <algorithm>

#include "agent/gpu/elements.h"
#include "agent/gpu/kernels.h"
#include "agent/gpu/xxh3_leaf.h"

namespace xfer::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarp = 32;
constexpr uint32_t kVectorBytes = 16;
// What a warp copies at a time: eight vectors a lane, all loaded before the first is stored.
constexpr uint32_t kUnitVectors = 8;
constexpr uint32_t kUnitBytes = kUnitVectors * kWarp * kVectorBytes;
// Waves of blocks that a launch has at most; each then walks the range in a loop.
constexpr int kBlocksPerMultiprocessor = 16;

__constant__ LeafKeys leaf_keys[kLeafLanes];

uint32_t Blocks(uint64_t wanted, int multiprocessors) {
  const auto most = static_cast<uint64_t>(multiprocessors) * kBlocksPerMultiprocessor;
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most));
}

template <Form form>
__device__ StridedPlace Place(const StridedRange& range, uint64_t at) {
  StridedPlace place = Locate(range, at);
  if (form == Form::kPack) place.destination = at - range.begin;
  if (form == Form::kUnpack) place.source = at - range.begin;
  return place;
}

__device__ bool Aligned(const std::byte* a, const std::byte* b) {
  return ((reinterpret_cast<uint64_t>(a) | reinterpret_cast<uint64_t>(b)) & (kVectorBytes - 1)) ==
         0;
}

// Bytes [at, end) one by one, over as many runs as that takes; for what is not aligned.
template <Form form>
__device__ void CopyBytes(const StridedRange& range, const std::byte* source,
                          std::byte* destination, uint64_t at, uint64_t end) {
  while (at < end) {
    const StridedPlace place = Place<form>(range, at);
    const uint64_t n = min(place.left, end - at);
    for (uint64_t i = 0; i < n; ++i) destination[place.destination + i] = source[place.source + i];
    at += n;
  }
}

// A whole unit whose vectors each lie in one run, several loads under way at once. False, with
// nothing done: they do not.
template <Form form>
__device__ bool CopyShortRuns(const StridedRange& range, const std::byte* source,
                              std::byte* destination, uint64_t unit, uint32_t lane) {
  constexpr uint32_t kAtOnce = 4;
  const StridedCopy& copy = range.first;
  uint64_t bits = reinterpret_cast<uint64_t>(source) | reinterpret_cast<uint64_t>(destination) |
                  copy.run | copy.source | copy.destination | copy.begin | range.begin;
  for (uint32_t i = 0; i < copy.levels; ++i)
    bits |= static_cast<uint64_t>(copy.source_stride[i] | copy.destination_stride[i]);
  if (range.copies != 1 || (bits & (kVectorBytes - 1)) != 0) return false;
  for (uint32_t first = 0; first < kUnitVectors; first += kAtOnce) {
    uint4 vectors[kAtOnce];
    uint64_t to[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const StridedPlace place =
          Place<form>(range, unit + ((first + i) * kWarp + lane) * kVectorBytes);
      to[i] = place.destination;
      vectors[i] = __ldcs(reinterpret_cast<const uint4*>(source + place.source));
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i)
      __stcs(reinterpret_cast<uint4*>(destination + to[i]), vectors[i]);
  }
  return true;
}

template <Form form>
__global__ void __launch_bounds__(kThreads)
    CopyKernel(const __grid_constant__ StridedRange range, const std::byte* __restrict__ source,
               std::byte* __restrict__ destination) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint64_t warps = uint64_t{gridDim.x} * (kThreads / kWarp);
  const uint64_t warp = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  for (uint64_t unit = range.begin + warp * kUnitBytes; unit < range.end;
       unit += warps * kUnitBytes) {
    const uint64_t unit_end = min(unit + kUnitBytes, range.end);
    const StridedPlace place = Place<form>(range, unit);
    const std::byte* from = source + place.source;
    std::byte* to = destination + place.destination;
    if (unit_end - unit == kUnitBytes && place.left >= kUnitBytes && Aligned(from, to)) {
      uint4 vectors[kUnitVectors];
#pragma unroll
      for (uint32_t i = 0; i < kUnitVectors; ++i)
        vectors[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i * kWarp + lane);
#pragma unroll
      for (uint32_t i = 0; i < kUnitVectors; ++i)
        __stcs(reinterpret_cast<uint4*>(to) + i * kWarp + lane, vectors[i]);
      continue;
    }
    if (unit_end - unit == kUnitBytes &&
        CopyShortRuns<form>(range, source, destination, unit, lane))
      continue;
    for (uint64_t at = unit + lane * kVectorBytes; at < unit_end; at += kWarp * kVectorBytes) {
      const uint64_t end = min(at + kVectorBytes, unit_end);
      const StridedPlace vector = Place<form>(range, at);
      const std::byte* vector_from = source + vector.source;
      std::byte* vector_to = destination + vector.destination;
      if (end - at == kVectorBytes && vector.left >= kVectorBytes &&
          Aligned(vector_from, vector_to)) {
        *reinterpret_cast<uint4*>(vector_to) = *reinterpret_cast<const uint4*>(vector_from);
      } else {
        CopyBytes<form>(range, source, destination, at, end);
      }
    }
  }
}

__device__ LeafPair LoadPair(const std::byte* at) {
  const ulonglong2 words = __ldcs(reinterpret_cast<const ulonglong2*>(at));
  return {words.x, words.y};
}

// 16 bytes of the stream that may lie in several runs or at any address.
__device__ __noinline__ LeafPair LoadScattered(const StridedRange& range, const std::byte* base,
                                               uint64_t at) {
  StridedPlace place = Locate(range, at);
  const std::byte* from = base + place.source;
  if (place.left >= kVectorBytes && Aligned(from, from)) return LoadPair(from);
  uint64_t words[2] = {};
  for (uint32_t i = 0; i < kVectorBytes; ++i, ++from, --place.left) {
    if (place.left == 0) {
      place = Locate(range, at + i);
      from = base + place.source;
    }
    words[i / 8] |= static_cast<uint64_t>(*from) << (i % 8 * 8);
  }
  return {words[0], words[1]};
}

__device__ __noinline__ StridedPlace LocateOnce(const StridedRange& range, uint64_t at) {
  return Locate(range, at);
}

// A lane's 16 bytes of one stripe after another; a run is looked for only where the one before has
// ended.
struct ScatteredReader {
  const StridedRange& range;
  const std::byte* base;
  uint64_t at;
  const std::byte* from = nullptr;
  uint64_t left = 0;

  __device__ LeafPair Next() {
    if (left == 0) {
      const StridedPlace place = LocateOnce(range, at);
      from = base + place.source;
      left = place.left;
    }
    const LeafPair pair = left >= kVectorBytes && Aligned(from, from)
                              ? LoadPair(from)
                              : LoadScattered(range, base, at);
    at += kStripeBytes;
    from += kStripeBytes;
    left = left > kStripeBytes ? left - kStripeBytes : 0;
    return pair;
  }
};

// `whole`: every leaf lies in one run, at a multiple of 16 bytes.
template <bool whole>
__global__ void __launch_bounds__(kThreads)
    DigestKernel(const __grid_constant__ StridedRange range, const std::byte* base, uint64_t leaves,
                 unsigned long long* sum) {
  constexpr uint32_t kLeavesPerBlock = kThreads / kLeafLanes;
  const uint32_t lane = threadIdx.x % kLeafLanes;
  const LeafKeys keys = leaf_keys[lane];
  const uint64_t step = uint64_t{gridDim.x} * kLeavesPerBlock;
  const uint64_t first_leaf = range.begin / kLeafBytes;
  uint64_t total = 0;
  // All lanes of a warp stay together to the end, for they exchange their folds.
  for (uint64_t begin = uint64_t{blockIdx.x} * kLeavesPerBlock; begin < leaves; begin += step) {
    const uint64_t leaf = begin + threadIdx.x / kLeafLanes;
    uint64_t fold = 0;
    if (leaf < leaves) {
      const uint64_t at = range.begin + leaf * kLeafBytes;
      if constexpr (whole) {
        const std::byte* from = base + Locate(range, at).source + lane * kVectorBytes;
        fold =
            HashLane(keys, [&](uint32_t stripe) { return LoadPair(from + stripe * kStripeBytes); });
      } else {
        ScatteredReader reader{range, base, at + lane * kVectorBytes};
        fold = HashLane(keys, [&](uint32_t) { return reader.Next(); });
      }
    }
    fold += __shfl_xor_sync(0xffff'ffffu, fold, 1);
    fold += __shfl_xor_sync(0xffff'ffffu, fold, 2);
    if (leaf < leaves && lane == 0) total += FinishLeaf(first_leaf + leaf, fold);
  }
  for (uint32_t offset = kWarp / 2; offset > 0; offset /= 2)
    total += __shfl_xor_sync(0xffff'ffffu, total, offset);
  if (threadIdx.x % kWarp == 0) atomicAdd(sum, static_cast<unsigned long long>(total));
}

template <typename T>
__device__ T LoadElement(const std::byte* from) {
  T value = 0;
  for (uint32_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(from[i]) << (i * 8));
  return value;
}

template <typename From, typename To, To (*convert)(From)>
__global__ void __launch_bounds__(kThreads)
    CastKernel(const __grid_constant__ StridedRange range, const std::byte* __restrict__ source,
               To* __restrict__ out) {
  const uint64_t elements = (range.end - range.begin) / sizeof(From);
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += step) {
    // Runs are whole elements; that their addresses are aligned nobody promised.
    const StridedPlace place = Locate(range, range.begin + i * sizeof(From));
    out[i] = convert(LoadElement<From>(source + place.source));
  }
}

template <typename From, typename To, To (*convert)(From)>
cudaError_t RunCast(const StridedRange& range, const std::byte* source, std::byte* out,
                    int multiprocessors, cudaStream_t stream) {
  const uint64_t elements = (range.end - range.begin) / sizeof(From);
  CastKernel<From, To, convert>
      <<<Blocks((elements + kThreads - 1) / kThreads, multiprocessors), kThreads, 0, stream>>>(
          range, source, reinterpret_cast<To*>(out));
  return cudaGetLastError();
}

bool LeavesAreWhole(const StridedRange& range, const std::byte* base) {
  if (range.copies != 1) return false;
  const StridedCopy& copy = range.first;
  uint64_t bits = reinterpret_cast<uint64_t>(base) + copy.source;
  for (uint32_t i = 0; i < copy.levels; ++i) bits |= static_cast<uint64_t>(copy.source_stride[i]);
  if (bits % kVectorBytes != 0 || copy.begin % kLeafBytes != 0) return false;
  return copy.run % kLeafBytes == 0 || Locate(range, range.begin).left >= range.end - range.begin;
}

}  // namespace

cudaError_t LaunchCopy(const StridedRange& range, Form form, const std::byte* source,
                       std::byte* destination, int multiprocessors, cudaStream_t stream) {
  const uint64_t units = (range.end - range.begin + kUnitBytes - 1) / kUnitBytes;
  constexpr uint32_t kWarps = kThreads / kWarp;
  const uint32_t blocks = Blocks((units + kWarps - 1) / kWarps, multiprocessors);
  if (form == Form::kStrided) {
    CopyKernel<Form::kStrided><<<blocks, kThreads, 0, stream>>>(range, source, destination);
  } else if (form == Form::kPack) {
    CopyKernel<Form::kPack><<<blocks, kThreads, 0, stream>>>(range, source, destination);
  } else {
    CopyKernel<Form::kUnpack><<<blocks, kThreads, 0, stream>>>(range, source, destination);
  }
  return cudaGetLastError();
}

cudaError_t LaunchDigest(const StridedRange& range, const std::byte* base, uint64_t* sum,
                         int multiprocessors, cudaStream_t stream) {
  const uint64_t leaves = (range.end - range.begin) / kLeafBytes;
  if (leaves == 0) return cudaSuccess;
  constexpr uint32_t kLeavesPerBlock = kThreads / kLeafLanes;
  const uint32_t blocks = Blocks((leaves + kLeavesPerBlock - 1) / kLeavesPerBlock, multiprocessors);
  auto* const total = reinterpret_cast<unsigned long long*>(sum);
  if (LeavesAreWhole(range, base)) {
    DigestKernel<true><<<blocks, kThreads, 0, stream>>>(range, base, leaves, total);
  } else {
    DigestKernel<false><<<blocks, kThreads, 0, stream>>>(range, base, leaves, total);
  }
  return cudaGetLastError();
}

cudaError_t LaunchCast(const StridedRange& range, Cast cast, const std::byte* source,
                       std::byte* out, int multiprocessors, cudaStream_t stream) {
  switch (cast) {
    case Cast::kBF16ToF32:
      return RunCast<uint16_t, uint32_t, F32FromBF16>(range, source, out, multiprocessors, stream);
    case Cast::kF16ToF32:
      return RunCast<uint16_t, uint32_t, F32FromF16>(range, source, out, multiprocessors, stream);
    case Cast::kF32ToBF16:
      return RunCast<uint32_t, uint16_t, BF16FromF32>(range, source, out, multiprocessors, stream);
    case Cast::kF32ToF16:
      return RunCast<uint32_t, uint16_t, F16FromF32>(range, source, out, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t UploadLeafKeys() {
  LeafKeys keys[kLeafLanes];
  for (uint32_t lane = 0; lane < kLeafLanes; ++lane) keys[lane] = KeysOfLane(lane);
  return cudaMemcpyToSymbol(leaf_keys, keys, sizeof(keys));
}

}  // namespace xfer::gpu
