// Every profile, at full size (layouts are descriptions, so that costs no memory) and shrunk.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/layout/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

struct Bytes {
  int64_t total = 0;
  int64_t padding = 0;  // elements
};

Bytes BytesOf(const RankLayout& layout) {
  Bytes out;
  for (const LocalTensor& t : layout.tensors) {
    out.total += NumElements(t.shape) * SizeOf(t.dtype);
    out.padding += t.padding_elements;
  }
  return out;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> out;
  for (const ModelSpec& spec : Presets()) out.push_back(spec.name);
  return out;
}

class ProfileTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<ModelSpec> spec = FindPreset(GetParam());
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
  }
  ModelSpec spec_;
};

TEST_P(ProfileTest, LayoutsOfAFullSizeStageAndEngineAreSound) {
  const ModelSpec& spec = spec_;
  const absl::StatusOr<TensorTable> table = BuildTensorTable(spec.config);
  ASSERT_TRUE(table.ok()) << table.status();
  const int per_stage = spec.train.world / spec.train.pp;
  for (int rank : {0, per_stage - 1, spec.train.world - 1}) {
    const absl::StatusOr<RankLayout> layout = MegatronLayout(spec, *table, rank);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_TRUE(CheckLayout(*layout, *table).ok()) << CheckLayout(*layout, *table);
  }
  for (int rank : {0, spec.rollout.gpus_per_engine - 1}) {
    const absl::StatusOr<RankLayout> layout = SglangLayout(spec, *table, rank);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_TRUE(CheckLayout(*layout, *table).ok()) << CheckLayout(*layout, *table);
  }
  const absl::StatusOr<RankLayout> whole = HuggingFaceLayout(spec, *table);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(BytesOf(*whole).total, table->total_bytes());
}

// Bytes of one rollout rank, computed from the shape tables by an independent script.
TEST(ProfileBytesTest, RolloutRanksHaveTheComputedBytes) {
  const std::pair<const char*, int64_t> facts[] = {
      {"Qwen3-4B", 4022664192},     {"GLM-4.7-Flash", 15175185408},
      {"GLM-5_4layer", 8989053952}, {"GLM-5_20layer", 32810587136},
      {"GLM-5", 55346457600},       {"Qwen3-30B-A3B", 7680585728},
      {"GLM-4.5-Air", 26755038720}, {"Qwen3-235B-A22B-Instruct-2507", 14962875392}};
  for (const auto& [name, bytes] : facts) {
    const absl::StatusOr<ModelSpec> spec = FindPreset(name);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const absl::StatusOr<TensorTable> table = BuildTensorTable(spec->config);
    ASSERT_TRUE(table.ok()) << table.status();
    const absl::StatusOr<RankLayout> layout = SglangLayout(*spec, *table, 1);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(BytesOf(*layout).total, bytes) << name;
  }
}

// Likewise of training ranks: elements of the first and the last stage.
TEST(ProfileBytesTest, TrainingRanksHaveTheComputedElements) {
  struct Fact {
    const char* name;
    int64_t first, last;
  };
  const Fact facts[] = {{"Qwen3-4B", 2011495936, 2011495936},
                        {"GLM-5", 1112167680 + 4227858432, 827848704 + 4831838208},
                        {"GLM-4.5-Air", 2260215168 + 3045064704, 1889764608 + 2768240640},
                        {"Kimi-K2-Instruct", 461376128 + 3699376128, 317612928 + 2642411520},
                        {"GLM-4.7-Flash", 653925312 + 3548381184, 653925312 + 3548381184}};
  for (const Fact& fact : facts) {
    const absl::StatusOr<ModelSpec> spec = FindPreset(fact.name);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const absl::StatusOr<TensorTable> table = BuildTensorTable(spec->config);
    ASSERT_TRUE(table.ok()) << table.status();
    const auto elements = [&](int rank) {
      const absl::StatusOr<RankLayout> layout = MegatronLayout(*spec, *table, rank);
      EXPECT_TRUE(layout.ok()) << layout.status();
      int64_t n = 0;
      for (const LocalTensor& t : layout->tensors) n += NumElements(t.shape);
      return n;
    };
    EXPECT_EQ(elements(0), fact.first) << fact.name;
    EXPECT_EQ(elements(spec->train.world - 1), fact.last) << fact.name;
  }
}

// All ranks of the shrunk profile fit into the memory of one machine, and the rules that the full
// one exercises are still there.
TEST_P(ProfileTest, TheShrunkProfileIsSmallAndPadsWhereTheFullOneDoes) {
  const absl::StatusOr<ModelSpec> small = Shrink(spec_);
  ASSERT_TRUE(small.ok()) << small.status();
  const absl::StatusOr<TensorTable> table = BuildTensorTable(small->config);
  ASSERT_TRUE(table.ok()) << table.status();
  int64_t total = 0;
  int64_t padding = 0;
  std::set<TensorId> sources;
  for (int rank = 0; rank < small->train.world; ++rank) {
    const absl::StatusOr<RankLayout> layout = MegatronLayout(*small, *table, rank);
    ASSERT_TRUE(layout.ok()) << layout.status();
    total += BytesOf(*layout).total;
    padding += BytesOf(*layout).padding;
    for (const LocalTensor& t : layout->tensors) {
      for (const Part& part : t.parts) sources.insert(part.tensor);
    }
  }
  for (int rank = 0; rank < small->rollout.gpus_per_engine; ++rank) {
    const absl::StatusOr<RankLayout> layout = SglangLayout(*small, *table, rank);
    ASSERT_TRUE(layout.ok()) << layout.status();
    total += BytesOf(*layout).total * small->rollout.engines();
    for (const LocalTensor& t : layout->tensors) {
      for (const Part& part : t.parts) {
        ASSERT_EQ(sources.count(part.tensor), 1) << "no source of " << (*table)[part.tensor].name;
      }
    }
  }
  RecordProperty("bytes_of_all_ranks", std::to_string(total));
  EXPECT_LT(total, int64_t{6} << 30);
  const int64_t unit = int64_t{spec_.train.vocab_divisor} * spec_.train.tp;
  EXPECT_EQ(padding > 0, spec_.config.vocab_size % unit != 0);
}

INSTANTIATE_TEST_SUITE_P(All, ProfileTest, ::testing::ValuesIn(PresetNames()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (!isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace xfer
