#include "common/layout/manifest.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/layout/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/layout/labelled.h"
#include "tests/unit/common/layout/random_spec.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Regions whose element at byte b has the label labels[region][b].
struct Memory {
  std::vector<std::vector<int64_t>> labels;
  std::vector<TensorPlacement> placements;
  std::vector<uint64_t> bytes;
};

// Puts a rank's tensors behind each other with random gaps, into several regions; matrices
// sometimes with a row pitch that is larger than a row.
Memory Place(const RankLayout& layout, const Arrays& local, std::mt19937& rng) {
  Memory out;
  out.labels.resize(3);
  for (const LocalTensor& tensor : layout.tensors) {
    TensorPlacement p{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape};
    p.region = static_cast<int32_t>(rng() % 3);
    std::vector<int64_t>& labels = out.labels[p.region];
    labels.resize(labels.size() + rng() % 50, -1);
    p.offset = labels.size();
    Dims strides(tensor.shape.size());
    int64_t step = SizeOf(tensor.dtype);
    for (size_t d = tensor.shape.size(); d-- > 0;) {
      strides[d] = step;
      step *= tensor.shape[d];
      if (rng() % 4 == 0) step += static_cast<int64_t>(rng() % 9);
    }
    labels.resize(labels.size() + step, -1);
    const std::vector<int64_t>& values = local.at(tensor.name).v;
    for (size_t i = 0; i < values.size(); ++i) {
      size_t rest = i;
      uint64_t at = p.offset;
      for (size_t d = tensor.shape.size(); d-- > 0;) {
        at += rest % tensor.shape[d] * strides[d];
        rest /= tensor.shape[d];
      }
      labels[at] = values[i];
    }
    p.strides = strides;
    out.placements.push_back(p);
  }
  std::shuffle(out.placements.begin(), out.placements.end(), rng);
  for (const auto& region : out.labels) out.bytes.push_back(region.size());
  return out;
}

class ManifestPropertyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ManifestPropertyTest, EveryPieceLiesWhereItSays) {
  std::mt19937 rng(23);
  for (int round = 0; round < 12; ++round) {
    const ModelSpec spec = RandomSpec(GetParam(), rng);
    ASSERT_FALSE(HasFailure());
    const absl::StatusOr<TensorTable> table = BuildTensorTable(spec.config);
    ASSERT_TRUE(table.ok()) << table.status();
    const Arrays hf = Labelled(*table);
    const bool train = round % 2 == 0;
    const int rank =
        static_cast<int>(rng() % (train ? spec.train.world : spec.rollout.gpus_per_engine));
    const absl::StatusOr<RankLayout> layout =
        train ? MegatronLayout(spec, *table, rank) : SglangLayout(spec, *table, rank);
    ASSERT_TRUE(layout.ok()) << layout.status();
    const Memory memory = Place(*layout, Materialise(*layout, *table, hf), rng);
    const absl::StatusOr<Manifest> manifest =
        BuildManifest(*table, *layout, memory.placements, memory.bytes);
    ASSERT_TRUE(manifest.ok()) << manifest.status();

    EXPECT_EQ(manifest->region_bytes, memory.bytes);
    uint64_t bytes = 0;
    for (const LocalTensor& t : layout->tensors) {
      bytes += (NumElements(t.shape) - t.padding_elements) * SizeOf(t.dtype);
    }
    EXPECT_EQ(manifest->bytes(), bytes);
    ASSERT_TRUE(manifest->fused_groups.empty() ||
                manifest->fused_groups.size() == manifest->pieces.size());
    for (const Piece& piece : manifest->pieces) {
      const Array& source = hf.at((*table)[piece.tensor].name);
      ASSERT_EQ(piece.strides.size(), source.shape.size());
      for (int64_t i = 0; i < piece.box.NumElements(); ++i) {
        int64_t rest = i;
        int64_t flat = 0;
        int64_t flat_step = 1;
        uint64_t at = piece.offset;
        for (size_t d = source.shape.size(); d-- > 0;) {
          const int64_t x = rest % piece.box.extent[d];
          rest /= piece.box.extent[d];
          flat += (piece.box.start[d] + x) * flat_step;
          flat_step *= source.shape[d];
          at += x * piece.strides[d];
        }
        ASSERT_EQ(memory.labels[piece.region].at(at), source.v[flat]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ManifestPropertyTest, ::testing::ValuesIn(kArchitectureNames),
                         [](const auto& info) { return std::string(info.param); });

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    table_.Add("w", DType::kBF16, {4, 6});
    table_.Add("b", DType::kBF16, {6});
    layout_.tensors.push_back({.name = "m.w",
                               .dtype = DType::kBF16,
                               .shape = {4, 6},
                               .parts = {{0, {{0, 0}, {4, 6}}, {0, 0}}},
                               .fused_group = "g"});
    layout_.tensors.push_back(
        {.name = "m.b", .dtype = DType::kF32, .shape = {6}, .parts = {{1, {{0}, {6}}, {0}}}});
    placements_ = {{.name = "m.w", .dtype = DType::kBF16, .shape = {4, 6}, .offset = 0},
                   {.name = "m.b", .dtype = DType::kF32, .shape = {6}, .offset = 48}};
  }

  absl::Status Build() { return BuildManifest(table_, layout_, placements_, regions_).status(); }
  void ExpectRefused(const std::string& tensor, const std::string& message) {
    const absl::Status status = Build();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("tensor " + tensor), HasSubstr(message)));
  }

  TensorTable table_;
  RankLayout layout_;
  std::vector<TensorPlacement> placements_;
  std::vector<uint64_t> regions_ = {72};
};

TEST_F(ManifestTest, KeepsTypesAndGroups) {
  const absl::StatusOr<Manifest> manifest = BuildManifest(table_, layout_, placements_, regions_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->pieces.size(), 2);
  EXPECT_EQ(manifest->pieces[0].strides, (Dims{12, 2}));
  EXPECT_EQ(manifest->pieces[1].dtype, DType::kF32);
  EXPECT_EQ(manifest->pieces[1].offset, 48);
  EXPECT_THAT(manifest->fused_groups, ::testing::ElementsAre("g", ""));
  EXPECT_EQ(manifest->bytes(), 48 + 24);
}

TEST_F(ManifestTest, WithoutGroupsThereIsNoList) {
  layout_.tensors[0].fused_group.clear();
  const absl::StatusOr<Manifest> manifest = BuildManifest(table_, layout_, placements_, regions_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_TRUE(manifest->fused_groups.empty());
}

TEST_F(ManifestTest, AMissingTensor) {
  placements_.pop_back();
  ExpectRefused("m.b", "is missing (1 of 2 were given)");
}

TEST_F(ManifestTest, AnExtraTensor) {
  placements_.push_back({.name = "m.c", .dtype = DType::kBF16, .shape = {1}});
  ExpectRefused("m.c", "is not in this rank's layout");
}

TEST_F(ManifestTest, ADoubledTensor) {
  placements_.push_back(placements_[0]);
  ExpectRefused("m.w", "is given twice");
}

TEST_F(ManifestTest, AnotherShape) {
  placements_[0].shape = {6, 4};
  ExpectRefused("m.w", "has shape [6, 4]; this rank's layout needs [4, 6]");
  placements_[0].shape = {24};
  ExpectRefused("m.w", "has shape [24]");
  placements_[0].shape = {-4, -6};
  ExpectRefused("m.w", "has shape [-4, -6]");
}

TEST_F(ManifestTest, AnotherType) {
  placements_[1].dtype = DType::kBF16;
  ExpectRefused("m.b", "is BF16; it must be F32");
}

TEST_F(ManifestTest, NoElement) {
  placements_[1].shape = {0};
  ExpectRefused("m.b", "no element");
}

TEST_F(ManifestTest, OutsideItsRegion) {
  placements_[1].offset = 49;
  ExpectRefused("m.b", "needs 24 bytes at offset 49; region 0 has 72 bytes");
  placements_[1].offset = std::numeric_limits<uint64_t>::max() - 10;  // offset + length wraps
  ExpectRefused("m.b", "needs 24 bytes at offset 18446744073709551605");
  regions_[0] = 20;
  placements_[1].offset = 0;
  ExpectRefused("m.w", "region 0 has 20 bytes");
}

TEST_F(ManifestTest, NoSuchRegion) {
  placements_[1].region = 1;
  ExpectRefused("m.b", "is in region 1; the rank has 1");
  placements_[1].region = -1;
  ExpectRefused("m.b", "is in region -1");
}

TEST_F(ManifestTest, BadStrides) {
  placements_[0].strides = {12};
  ExpectRefused("m.w", "has 1 strides [12] for shape [4, 6]");
  placements_[0].strides = {12, 0};
  ExpectRefused("m.w", "every stride must be at least 1 byte");
  placements_[0].strides = {12, -2};
  ExpectRefused("m.w", "every stride must be at least 1 byte");
  placements_[0].strides = {10, 2};
  ExpectRefused("m.w", "overlap themselves");
  placements_[0].strides = {std::numeric_limits<int64_t>::max(), 2};
  ExpectRefused("m.w", "overlap themselves or wrap");
}

TEST_F(ManifestTest, OverlappingTensors) {
  placements_[1].offset = 47;
  ExpectRefused("m.w", "(bytes 0 to 48 of region 0) overlaps tensor m.b (bytes 47 to 71)");
  // The same offsets in another region do not.
  regions_.push_back(72);
  placements_[1].region = 1;
  EXPECT_TRUE(Build().ok()) << Build();
}

TEST_F(ManifestTest, InterleavedTensorsMayLieApart) {
  // Rows of 12 bytes of m.w every 16, and the 4 bytes of m.b between them.
  placements_[0].strides = {16, 2};
  placements_[1].offset = 12;
  placements_[1].strides = {16};
  regions_[0] = 12 + 5 * 16 + 4;
  EXPECT_TRUE(Build().ok()) << Build();
  placements_[1].offset = 11;
  ExpectRefused("m.w", "overlaps tensor m.b");
}

TEST_F(ManifestTest, TransposedMemoryIsAccepted) {
  placements_[0].strides = {2, 8};
  const absl::StatusOr<Manifest> manifest = BuildManifest(table_, layout_, placements_, regions_);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->pieces[0].strides, (Dims{2, 8}));
}

TEST_F(ManifestTest, ALayoutOfAnotherModelIsFound) {
  layout_.tensors[1].parts[0].tensor = 7;
  EXPECT_EQ(Build().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace xfer
