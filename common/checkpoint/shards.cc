#include "common/checkpoint/shards.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/convert.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/checkpoint/values.h"

namespace xfer {
namespace {

// Elements that are worked on at a time: their bytes stay in the first-level cache.
constexpr uint64_t kBlockElements = 4096;
constexpr uint64_t kMaxElementBytes = 8;

std::string Shape(const Dims& dims) { return absl::StrCat("[", absl::StrJoin(dims, ", "), "]"); }

// Two blocks of working memory.
struct Buffers {
  alignas(64) std::byte hf[kBlockElements * kMaxElementBytes];
  alignas(64) std::byte local[kBlockElements * kMaxElementBytes];
};

// Cuts [0, n) into blocks.
template <typename Fn>
void ForEachBlock(uint64_t n, Fn fn) {
  for (uint64_t at = 0; at < n; at += kBlockElements) fn(at, std::min(kBlockElements, n - at));
}

// A Hugging Face tensor as one part needs it.
struct Source {
  DType hf_type, local_type;
  uint64_t hf_size, local_size;  // bytes an element
  TensorKey key;
  uint64_t version;
  absl::Span<const std::byte> data;

  // Writes what the checkpoint at the version says of `n` elements (at most kBlockElements) from
  // `hf_element` on, in the local type.
  void Get(uint64_t hf_element, uint64_t n, Buffers& buffers, absl::Span<std::byte> out) const {
    const auto from = data.subspan(hf_element * hf_size, n * hf_size);
    if (version == 1) {
      ConvertRun(hf_type, local_type, from, out);
      return;
    }
    const auto changed = hf_type == local_type ? out : absl::MakeSpan(buffers.hf, n * hf_size);
    std::memcpy(changed.data(), from.data(), from.size());
    ChangeRun(key, hf_type, hf_element, changed, 1, version);
    if (hf_type != local_type) ConvertRun(hf_type, local_type, changed, out);
  }
};

absl::StatusOr<Source> Open(const LocalTensor& local, const TensorInfo& hf,
                            const Checkpoint& checkpoint, uint64_t version) {
  XFER_ASSIGN_OR_RETURN(const TensorView view, checkpoint.Find(hf.name));
  if (view.dtype != hf.dtype || view.shape != hf.shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", hf.name, "' is ", Name(view.dtype), " ", Shape(view.shape),
        " in the checkpoint, but the model has ", Name(hf.dtype), " ", Shape(hf.shape)));
  }
  return Source{hf.dtype,
                local.dtype,
                static_cast<uint64_t>(SizeOf(hf.dtype)),
                static_cast<uint64_t>(SizeOf(local.dtype)),
                ChangeKey(hf.name),
                version,
                view.data};
}

// The differences found in one local tensor.
struct Differences {
  uint64_t elements = 0;
  const TensorInfo* tensor = nullptr;  // of the first
  uint64_t hf_element = 0, local_element = 0;
  std::string expected, found;  // bytes
};

// Counts the elements in which two blocks differ, and remembers the first of all.
void Count(const TensorInfo& hf, uint64_t hf_element, uint64_t local_element, uint64_t size,
           absl::Span<const std::byte> expected, absl::Span<const std::byte> found,
           Differences& differences) {
  for (uint64_t i = 0; i * size < expected.size(); ++i) {
    const std::byte* e = expected.data() + i * size;
    const std::byte* f = found.data() + i * size;
    if (std::memcmp(e, f, size) == 0) continue;
    if (differences.elements++ == 0) {
      differences.tensor = &hf;
      differences.hf_element = hf_element + i;
      differences.local_element = local_element + i;
      differences.expected.assign(reinterpret_cast<const char*>(e), size);
      differences.found.assign(reinterpret_cast<const char*>(f), size);
    }
  }
}

// The multi-dimensional index of a linear one.
std::string Index(uint64_t element, const Dims& shape) {
  Dims index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = static_cast<int64_t>(element) % shape[d];
    element /= shape[d];
  }
  return Shape(index);
}

absl::Status Describe(const LocalTensor& local, const Differences& d, uint64_t compared,
                      uint64_t version) {
  return absl::DataLossError(absl::StrCat(
      "local tensor '", local.name, "' differs from version ", version, " in ", d.elements, " of ",
      compared, " elements; the first is element ", Index(d.hf_element, d.tensor->shape), " of '",
      d.tensor->name, "' at local index ", Index(d.local_element, local.shape),
      ": expected bytes 0x", absl::BytesToHexString(d.expected), ", found 0x",
      absl::BytesToHexString(d.found)));
}

absl::Status CheckPart(const LocalTensor& local, const Part& part, const TensorTable& table) {
  if (part.tensor < 0 || part.tensor >= table.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("part of tensor number ", part.tensor, ", which the model does not have"));
  }
  const TensorInfo& hf = table[part.tensor];
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("part of '", hf.name, "' from ",
                                                   Shape(part.hf.start), " with extent ",
                                                   Shape(part.hf.extent), " ", why...));
  };
  const size_t rank = hf.shape.size();
  if (part.hf.start.size() != rank || part.hf.extent.size() != rank || local.shape.size() < rank ||
      part.local_start.size() != local.shape.size()) {
    return refuse("has another number of dimensions than ", Shape(hf.shape), " or local ",
                  Shape(local.shape));
  }
  const size_t lead = local.shape.size() - rank;
  for (size_t d = 0; d < local.shape.size(); ++d) {
    const int64_t extent = d < lead ? 1 : part.hf.extent[d - lead];
    const int64_t hf_start = d < lead ? 0 : part.hf.start[d - lead];
    const int64_t hf_extent = d < lead ? 1 : hf.shape[d - lead];
    if (extent <= 0 || hf_start < 0 || hf_start > hf_extent - extent || part.local_start[d] < 0 ||
        part.local_start[d] > local.shape[d] - extent) {
      return refuse("at local ", Shape(part.local_start), " does not lie inside ", Shape(hf.shape),
                    " and local ", Shape(local.shape));
    }
  }
  if (!CanConvert(hf.dtype, local.dtype)) {
    return refuse("is ", Name(hf.dtype), ", which has no conversion to ", Name(local.dtype));
  }
  return absl::OkStatus();
}

}  // namespace

void ForEachPartRun(const LocalTensor& local, const Part& part, const TensorInfo& hf,
                    absl::FunctionRef<void(uint64_t, uint64_t, uint64_t)> fn) {
  const int rank = static_cast<int>(hf.shape.size());
  const int lead = static_cast<int>(local.shape.size()) - rank;
  // Strides in elements, and the linear index of the part's first element, on both sides.
  Dims hf_stride(rank), local_stride(rank);
  uint64_t hf_at = 0, local_at = 0;
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    hf_stride[d] = stride;
    hf_at += part.hf.start[d] * stride;
    stride *= hf.shape[d];
  }
  stride = 1;
  for (int d = static_cast<int>(local.shape.size()) - 1; d >= 0; --d) {
    if (d >= lead) local_stride[d - lead] = stride;
    local_at += part.local_start[d] * stride;
    stride *= local.shape[d];
  }
  // Dimensions [outer, rank) make one run: those behind `outer` are whole on both sides.
  int outer = rank;
  uint64_t run = 1;
  while (outer > 0) {
    const int d = --outer;
    run *= part.hf.extent[d];
    if (part.hf.extent[d] != hf.shape[d] || part.hf.extent[d] != local.shape[lead + d]) break;
  }
  // An odometer over the dimensions before `outer`.
  Dims index(outer, 0);
  while (true) {
    fn(hf_at, local_at, run);
    int d = outer - 1;
    for (; d >= 0; --d) {
      hf_at += hf_stride[d];
      local_at += local_stride[d];
      if (++index[d] < part.hf.extent[d]) break;
      hf_at -= index[d] * hf_stride[d];
      local_at -= index[d] * local_stride[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

absl::Status CheckLocalTensor(const LocalTensor& local, const TensorTable& table, uint64_t bytes) {
  const std::string context = absl::StrCat("local tensor '", local.name, "'");
  auto expected = TensorBytes(local.dtype, local.shape);
  if (!expected.ok()) return Annotate(expected.status(), context);
  if (bytes != *expected) {
    return absl::InvalidArgumentError(absl::StrCat(context, ": memory has ", bytes, " bytes, but ",
                                                   Name(local.dtype), " ", Shape(local.shape),
                                                   " needs ", *expected));
  }
  for (const Part& part : local.parts) {
    XFER_RETURN_IF_ERROR(Annotate(CheckPart(local, part, table), context));
  }
  return absl::OkStatus();
}

absl::Status FillFromCheckpoint(const LocalTensor& local, const TensorTable& table,
                                const Checkpoint& checkpoint, absl::Span<std::byte> memory,
                                uint64_t version) {
  XFER_RETURN_IF_ERROR(CheckLocalTensor(local, table, memory.size()));
  if (local.padding_elements > 0 && !memory.empty()) std::memset(memory.data(), 0, memory.size());
  const auto buffers = std::make_unique_for_overwrite<Buffers>();
  for (const Part& part : local.parts) {
    const TensorInfo& hf = table[part.tensor];
    XFER_ASSIGN_OR_RETURN(const Source source, Open(local, hf, checkpoint, version));
    ForEachPartRun(local, part, hf, [&](uint64_t hf_at, uint64_t local_at, uint64_t elements) {
      ForEachBlock(elements, [&](uint64_t at, uint64_t n) {
        source.Get(hf_at + at, n, *buffers,
                   memory.subspan((local_at + at) * source.local_size, n * source.local_size));
      });
    });
  }
  return absl::OkStatus();
}

absl::Status StepVersion(const LocalTensor& local, const TensorTable& table,
                         absl::Span<std::byte> memory, uint64_t from_version, uint64_t to_version) {
  XFER_RETURN_IF_ERROR(CheckLocalTensor(local, table, memory.size()));
  for (const Part& part : local.parts) {
    if (!ConversionIsExact(table[part.tensor].dtype, local.dtype)) {
      return absl::UnimplementedError(absl::StrCat(
          "local tensor '", local.name, "' is ", Name(local.dtype), ", narrower than '",
          table[part.tensor].name, "', which is ", Name(table[part.tensor].dtype),
          "; its version cannot be stepped in place, fill it from the checkpoint"));
    }
  }
  const auto buffers = std::make_unique_for_overwrite<Buffers>();
  const auto size = static_cast<uint64_t>(SizeOf(local.dtype));
  for (const Part& part : local.parts) {
    const TensorInfo& hf = table[part.tensor];
    const TensorKey key = ChangeKey(hf.name);
    const auto hf_size = static_cast<uint64_t>(SizeOf(hf.dtype));
    ForEachPartRun(local, part, hf, [&](uint64_t hf_at, uint64_t local_at, uint64_t elements) {
      if (hf.dtype == local.dtype) {
        ChangeRun(key, hf.dtype, hf_at, memory.subspan(local_at * size, elements * size),
                  from_version, to_version);
        return;
      }
      ForEachBlock(elements, [&](uint64_t at, uint64_t n) {
        const auto block = memory.subspan((local_at + at) * size, n * size);
        const auto narrow = absl::MakeSpan(buffers->hf, n * hf_size);
        ConvertRun(local.dtype, hf.dtype, block, narrow);
        ChangeRun(key, hf.dtype, hf_at + at, narrow, from_version, to_version);
        ConvertRun(hf.dtype, local.dtype, narrow, block);
      });
    });
  }
  return absl::OkStatus();
}

absl::Status CheckAgainstCheckpoint(const LocalTensor& local, const TensorTable& table,
                                    const Checkpoint& checkpoint, uint64_t version,
                                    absl::Span<const std::byte> memory) {
  XFER_RETURN_IF_ERROR(CheckLocalTensor(local, table, memory.size()));
  const auto buffers = std::make_unique_for_overwrite<Buffers>();
  Differences differences;
  uint64_t compared = 0;
  for (const Part& part : local.parts) {
    const TensorInfo& hf = table[part.tensor];
    XFER_ASSIGN_OR_RETURN(const Source source, Open(local, hf, checkpoint, version));
    const bool as_it_is = version == 1 && hf.dtype == local.dtype;
    ForEachPartRun(local, part, hf, [&](uint64_t hf_at, uint64_t local_at, uint64_t elements) {
      compared += elements;
      ForEachBlock(elements, [&](uint64_t at, uint64_t n) {
        const uint64_t size = source.local_size;
        const auto found = memory.subspan((local_at + at) * size, n * size);
        absl::Span<const std::byte> expected;
        if (as_it_is) {
          expected = source.data.subspan((hf_at + at) * size, n * size);
        } else {
          const auto made = absl::MakeSpan(buffers->local, n * size);
          source.Get(hf_at + at, n, *buffers, made);
          expected = made;
        }
        if (std::memcmp(expected.data(), found.data(), expected.size()) != 0) {
          Count(hf, hf_at + at, local_at + at, size, expected, found, differences);
        }
      });
    });
  }
  if (differences.elements == 0) return absl::OkStatus();
  return Describe(local, differences, compared, version);
}

}  // namespace xfer
