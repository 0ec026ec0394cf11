#include "common/checkpoint/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/convert.h"
#include "common/checkpoint/dump.h"
#include "common/checkpoint/values.h"
#include "tests/unit/common/checkpoint/temp_dir.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

// A table whose tensors' values are in a checkpoint of its own directory.
class Shards : public testing::Test {
 protected:
  TensorId Add(const std::string& name, DType dtype, Dims shape) {
    return table_.Add(name, dtype, std::move(shape));
  }
  void Write() {
    std::vector<SafetensorsWriter::Entry> entries;
    for (const TensorInfo& t : table_.all()) entries.push_back({t.name, t.dtype, t.shape});
    auto writer = SafetensorsWriter::Create(dir_.File("model.safetensors"), entries);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const TensorInfo& t : table_.all()) {
      SynthesizeRun(SeededKey(t.name, 9), t.dtype, 0, *(*writer)->Data(t.name));
    }
    ASSERT_TRUE((*writer)->Finish().ok());
    auto checkpoint = Checkpoint::Open(dir_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
  }

  // What a local tensor must hold, element by element and by other means than the code under test.
  // Bytes that no part covers are `rest`.
  Bytes Naive(const LocalTensor& local, uint64_t version, std::byte rest) const {
    const int64_t size = SizeOf(local.dtype);
    Bytes out(NumElements(local.shape) * size, rest);
    for (const Part& part : local.parts) {
      const TensorInfo& hf = table_[part.tensor];
      const size_t lead = local.shape.size() - hf.shape.size();
      const int64_t hf_size = SizeOf(hf.dtype);
      Bytes whole(hf.bytes());
      SynthesizeRun(SeededKey(hf.name, 9), hf.dtype, 0, absl::MakeSpan(whole));
      ChangeRun(ChangeKey(hf.name), hf.dtype, 0, absl::MakeSpan(whole), 1, version);
      for (int64_t n = 0; n < part.hf.NumElements(); ++n) {
        // The index inside the box, then both linear indices.
        int64_t rest_of_n = n, hf_at = 0, local_at = 0;
        std::vector<int64_t> index(hf.shape.size());
        for (size_t d = index.size(); d-- > 0;) {
          index[d] = rest_of_n % part.hf.extent[d];
          rest_of_n /= part.hf.extent[d];
        }
        for (size_t d = 0; d < index.size(); ++d) {
          hf_at = hf_at * hf.shape[d] + part.hf.start[d] + index[d];
        }
        for (size_t d = 0; d < local.shape.size(); ++d) {
          local_at =
              local_at * local.shape[d] + part.local_start[d] + (d < lead ? 0 : index[d - lead]);
        }
        ConvertRun(hf.dtype, local.dtype,
                   absl::MakeConstSpan(whole).subspan(hf_at * hf_size, hf_size),
                   absl::MakeSpan(out).subspan(local_at * size, size));
      }
    }
    return out;
  }

  Bytes Fill(const LocalTensor& local, uint64_t version = 1) const {
    Bytes memory(NumElements(local.shape) * SizeOf(local.dtype), std::byte{0x5a});
    const absl::Status status =
        FillFromCheckpoint(local, table_, *checkpoint_, absl::MakeSpan(memory), version);
    EXPECT_TRUE(status.ok()) << status;
    return memory;
  }

  absl::Status Check(const LocalTensor& local, uint64_t version, const Bytes& memory) const {
    return CheckAgainstCheckpoint(local, table_, *checkpoint_, version, memory);
  }

  const TempDir dir_;
  TensorTable table_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

Part MakePart(TensorId id, Dims start, Dims extent, Dims local_start) {
  return {id, {std::move(start), std::move(extent)}, std::move(local_start)};
}

// Layouts of every kind that the ecosystems have: merged rows, cut columns, expert slots, padding,
// vectors.
class Kinds : public Shards {
 protected:
  Kinds() {
    q_ = Add("q", DType::kBF16, {12, 10});
    k_ = Add("k", DType::kBF16, {4, 10});
    e0_ = Add("e0", DType::kBF16, {6, 10});
    e1_ = Add("e1", DType::kBF16, {6, 10});
    norm_ = Add("norm", DType::kF32, {33});
    wide_ = Add("wide", DType::kF16, {3, 9000});
    Write();
    locals_ = {
        {"merged",
         DType::kBF16,
         {8, 10},
         {MakePart(q_, {6, 0}, {6, 10}, {0, 0}), MakePart(k_, {2, 0}, {2, 10}, {6, 0})}},
        {"columns", DType::kBF16, {12, 5}, {MakePart(q_, {0, 5}, {12, 5}, {0, 0})}},
        {"swapped halves",
         DType::kBF16,
         {12, 10},
         {MakePart(q_, {6, 0}, {6, 10}, {0, 0}), MakePart(q_, {0, 0}, {6, 10}, {6, 0})}},
        {"experts",
         DType::kBF16,
         {2, 6, 10},
         {MakePart(e1_, {0, 0}, {6, 10}, {0, 0, 0}), MakePart(e0_, {0, 0}, {6, 10}, {1, 0, 0})}},
        {"padded rows", DType::kBF16, {5, 10}, {MakePart(k_, {0, 0}, {4, 10}, {0, 0})}, 10},
        {"padded columns", DType::kBF16, {4, 11}, {MakePart(k_, {0, 0}, {4, 10}, {0, 1})}, 4},
        {"vector", DType::kF32, {10}, {MakePart(norm_, {20}, {10}, {0})}},
        {"widened", DType::kF32, {12, 4}, {MakePart(q_, {0, 3}, {12, 4}, {0, 0})}},
        {"widened half", DType::kF32, {3, 9000}, {MakePart(wide_, {0, 0}, {3, 9000}, {0, 0})}},
        {"narrowed", DType::kBF16, {33}, {MakePart(norm_, {0}, {33}, {0})}},
    };
  }
  TensorId q_, k_, e0_, e1_, norm_, wide_;
  std::vector<LocalTensor> locals_;
};

TEST_F(Kinds, FillEqualsANaiveCopyAndPaddingIsZero) {
  for (const LocalTensor& local : locals_) {
    for (const uint64_t version : {1, 2, 7}) {
      EXPECT_EQ(Fill(local, version), Naive(local, version, std::byte{0})) << local.name << version;
    }
  }
}

TEST_F(Kinds, StepsComposeAndLeavePaddingAlone) {
  for (const LocalTensor& local : locals_) {
    Bytes memory = Naive(local, 1, std::byte{0x77});
    const absl::Status first = StepVersion(local, table_, absl::MakeSpan(memory), 1, 2);
    if (local.name == "narrowed") {
      EXPECT_TRUE(absl::IsUnimplemented(first)) << first;
      EXPECT_THAT(std::string(first.message()), AllOf(HasSubstr("narrowed"), HasSubstr("norm")));
      continue;
    }
    ASSERT_TRUE(first.ok()) << first;
    EXPECT_EQ(memory, Naive(local, 2, std::byte{0x77})) << local.name;
    ASSERT_TRUE(StepVersion(local, table_, absl::MakeSpan(memory), 2, 5).ok());
    EXPECT_EQ(memory, Naive(local, 5, std::byte{0x77})) << local.name;
  }
}

TEST_F(Kinds, CheckAcceptsTheRightVersionOnly) {
  for (const LocalTensor& local : locals_) {
    for (const uint64_t version : {1, 3}) {
      Bytes memory = Naive(local, version, std::byte{0x33});
      EXPECT_TRUE(Check(local, version, memory).ok()) << local.name;
      const absl::Status other = Check(local, version + 1, memory);
      EXPECT_TRUE(absl::IsDataLoss(other)) << local.name << other;
    }
  }
}

TEST_F(Kinds, CheckFindsEveryFlippedByteThatAPartCovers) {
  for (const LocalTensor& local : locals_) {
    if (local.name == "widened half") continue;  // the same path, with a hundred thousand bytes
    const Bytes with_zeros = Naive(local, 4, std::byte{0});
    const Bytes with_ones = Naive(local, 4, std::byte{1});
    Bytes memory = with_zeros;
    for (size_t i = 0; i < memory.size(); ++i) {
      const bool padding = with_zeros[i] != with_ones[i];
      memory[i] ^= std::byte{0x40};
      const absl::Status status = Check(local, 4, memory);
      EXPECT_EQ(absl::IsDataLoss(status), !padding) << local.name << " byte " << i << status;
      EXPECT_EQ(status.ok(), padding);
      memory[i] ^= std::byte{0x40};
    }
  }
}

TEST_F(Kinds, TheErrorNamesTensorElementAndBytes) {
  // Row 6 of "merged" is row 2 of k.
  const LocalTensor& local = locals_[0];
  Bytes memory = Fill(local);
  const size_t at = (6 * 10 + 3) * 2;
  const int expected_low = std::to_integer<int>(memory[at]);
  const int high = std::to_integer<int>(memory[at + 1]);
  memory[at] ^= std::byte{0x01};
  memory[7 * 10 * 2] ^= std::byte{0x01};
  const std::string message(Check(local, 1, memory).message());
  EXPECT_THAT(message, AllOf(HasSubstr("'merged'"), HasSubstr("2 of 80 elements"),
                             HasSubstr("element [2, 3] of 'k'"), HasSubstr("local index [6, 3]")));
  const auto hex = [&](int low) {
    char text[8];
    std::snprintf(text, sizeof(text), "0x%02x%02x", low, high);
    return std::string(text);
  };
  EXPECT_THAT(message, HasSubstr(absl::StrCat("expected bytes ", hex(expected_low), ", found ",
                                              hex(expected_low ^ 1))));
}

TEST_F(Kinds, RefusesLayoutsThatDoNotFit) {
  Bytes memory(12 * 10 * 2);
  const auto status = [&](LocalTensor local) {
    const absl::Status fill =
        FillFromCheckpoint(local, table_, *checkpoint_, absl::MakeSpan(memory));
    const absl::Status check = Check(local, 1, memory);
    const absl::Status step = StepVersion(local, table_, absl::MakeSpan(memory), 1, 2);
    EXPECT_TRUE(absl::IsInvalidArgument(fill)) << fill;
    EXPECT_EQ(fill, check);
    EXPECT_EQ(fill, step);
    return std::string(fill.message());
  };
  const Dims shape = {12, 10};
  const auto one = [&](Part part) { return LocalTensor{"l", DType::kBF16, shape, {part}}; };
  EXPECT_THAT(status({"l", DType::kBF16, {12, 9}, {}}), HasSubstr("240 bytes"));
  EXPECT_THAT(status(one(MakePart(99, {0, 0}, {1, 1}, {0, 0}))), HasSubstr("99"));
  EXPECT_THAT(status(one(MakePart(-1, {0, 0}, {1, 1}, {0, 0}))), HasSubstr("-1"));
  EXPECT_THAT(status(one(MakePart(q_, {0, 0}, {13, 10}, {0, 0}))), HasSubstr("not lie inside"));
  EXPECT_THAT(status(one(MakePart(q_, {7, 0}, {6, 10}, {0, 0}))), HasSubstr("not lie inside"));
  EXPECT_THAT(status(one(MakePart(q_, {-1, 0}, {1, 10}, {0, 0}))), HasSubstr("not lie inside"));
  EXPECT_THAT(status(one(MakePart(q_, {0, 0}, {1, 10}, {12, 0}))), HasSubstr("not lie inside"));
  EXPECT_THAT(status(one(MakePart(q_, {0, 0}, {0, 10}, {0, 0}))), HasSubstr("not lie inside"));
  EXPECT_THAT(status(one(MakePart(q_, {0, INT64_MAX}, {1, 10}, {0, 0}))), HasSubstr("inside"));
  EXPECT_THAT(status(one(MakePart(q_, {0}, {1}, {0, 0}))), HasSubstr("dimensions"));
  EXPECT_THAT(status(one(MakePart(wide_, {0, 0}, {1, 10}, {0, 0}))), HasSubstr("no conversion"));
}

TEST_F(Kinds, RefusesACheckpointOfAnotherShapeOrWithoutTheTensor) {
  TensorTable other;
  other.Add("q", DType::kBF16, {10, 12});
  other.Add("absent", DType::kBF16, {10, 12});
  Bytes memory(240);
  for (const TensorId id : {0, 1}) {
    const LocalTensor local{"l", DType::kBF16, {10, 12}, {MakePart(id, {0, 0}, {10, 12}, {0, 0})}};
    const absl::Status status =
        FillFromCheckpoint(local, other, *checkpoint_, absl::MakeSpan(memory));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(other[id].name));
  }
}

TEST_F(Shards, RandomBoxes) {
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int i = 0; i < 60; ++i) {
    Dims shape;
    for (int d = static_cast<int>(below(4)); d >= 0; --d) shape.push_back(1 + below(7));
    Add(absl::StrCat("t", i), i % 3 == 0 ? DType::kF32 : DType::kBF16, shape);
  }
  Write();
  for (TensorId id = 0; id < table_.size(); ++id) {
    const TensorInfo& hf = table_[id];
    LocalTensor local;
    local.name = "local";
    local.dtype = id % 2 == 0 ? DType::kF32 : DType::kBF16;
    Part part;
    part.tensor = id;
    if (below(2) == 0) {
      local.shape.push_back(3);
      part.local_start.push_back(below(3));
    }
    for (const int64_t extent : hf.shape) {
      const int64_t start = below(3) == 0 ? below(extent) : 0;
      part.hf.start.push_back(start);
      part.hf.extent.push_back(below(3) == 0 ? 1 + below(extent - start) : extent - start);
      const int64_t before = below(3) == 0 ? 1 : 0;
      part.local_start.push_back(before);
      local.shape.push_back(before + part.hf.extent.back() + (below(3) == 0 ? 1 : 0));
    }
    local.parts.push_back(part);
    local.padding_elements = NumElements(local.shape) - part.hf.NumElements();
    EXPECT_EQ(Fill(local, 3), Naive(local, 3, std::byte{0})) << id;
    EXPECT_TRUE(Check(local, 3, Naive(local, 3, std::byte{9})).ok()) << id;
    // Runs are as long as they can be: the last dimension at least.
    uint64_t runs = 0;
    ForEachPartRun(local, part, hf, [&](uint64_t, uint64_t, uint64_t n) {
      EXPECT_GE(n, static_cast<uint64_t>(part.hf.extent.back()));
      ++runs;
    });
    if (part.hf.extent == hf.shape && local.padding_elements == 0) {
      EXPECT_EQ(runs, 1u);
    }
  }
}

TEST_F(Kinds, DumpWritesARank) {
  const RankLayout layout{{locals_[0], locals_[3], locals_[6]}};
  std::vector<Bytes> memory;
  std::vector<absl::Span<const std::byte>> spans;
  for (const LocalTensor& local : layout.tensors) memory.push_back(Fill(local));
  for (const Bytes& m : memory) spans.push_back(m);
  ASSERT_TRUE(DumpRank(dir_.File("dump"), layout, spans, {{"rank", "3"}}).ok());
  auto file = SafetensorsFile::Open(dir_.File("dump"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata().at("rank"), "3");
  ASSERT_EQ((*file)->tensors().size(), 3u);
  for (size_t i = 0; i < memory.size(); ++i) {
    auto view = (*file)->Find(layout.tensors[i].name);
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->dtype, layout.tensors[i].dtype);
    EXPECT_EQ(view->shape, layout.tensors[i].shape);
    EXPECT_EQ(Bytes(view->data.begin(), view->data.end()), memory[i]);
  }
  spans[1].remove_suffix(1);
  const absl::Status status = DumpRank(dir_.File("bad"), layout, spans);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'experts'"));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("bad")));
  spans.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(DumpRank(dir_.File("bad"), layout, spans)));
}

}  // namespace
}  // namespace xfer
