#include "xferctl/model_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "xferctl/exit.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

TEST(ChooseModelTest, TakesPresetsWholeCutAndShrunk) {
  EXPECT_EQ(ChooseModel({"Qwen3-4B"})->config.num_hidden_layers, 36);
  EXPECT_EQ(ChooseModel({"Qwen3-4B", 4})->config.num_hidden_layers, 4);
  const ModelSpec tiny = *ChooseModel({"Qwen3-4B", 4, true});
  EXPECT_EQ(tiny.config.num_hidden_layers, 4);
  EXPECT_LT(tiny.config.hidden_size, ChooseModel({"Qwen3-4B"})->config.hidden_size);
  EXPECT_EQ(ChoiceName("Qwen3-4B", {"Qwen3-4B", 4, true}), "Qwen3-4B-layers4-tiny");
  EXPECT_EQ(ChoiceName("Qwen3-4B", {"Qwen3-4B"}), "Qwen3-4B");
}

TEST(ChooseModelTest, EveryPresetCanBeShrunk) {
  for (const ModelSpec& spec : Presets()) {
    const auto tiny = ChooseModel({spec.name, std::nullopt, true});
    EXPECT_TRUE(tiny.ok()) << spec.name << ": " << tiny.status();
  }
}

TEST(ChooseModelTest, UnknownModelsAndLayersAreUsageErrors) {
  const absl::Status unknown = ChooseModel({"Qwen3-5B"}).status();
  EXPECT_EQ(ExitCodeOf(unknown), kExitUsage);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("Qwen3-4B"));
  for (int64_t layers : {0, -1, 37}) {
    const absl::Status status = ChooseModel({"Qwen3-4B", layers}).status();
    EXPECT_EQ(ExitCodeOf(status), kExitUsage) << layers;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--layers"));
  }
}

TEST(CutLayersTest, FitsTheLastStage) {
  ModelSpec spec = *FindPreset("Qwen3-235B-A22B-Instruct-2507");  // 4 stages
  EXPECT_FALSE(CutLayers(spec, 8)->train.last_stage_layers.has_value());
  EXPECT_EQ(CutLayers(spec, 10)->train.last_stage_layers, 1);  // 3 3 3 1
  EXPECT_EQ(CutLayers(spec, 5)->train.last_stage_layers, 2);   // 1 1 1 2
  for (int64_t layers = 4; layers <= 12; ++layers) {
    const auto cut = ChooseModel({spec.name, layers});
    EXPECT_TRUE(cut.ok()) << layers << ": " << cut.status();
  }
  EXPECT_EQ(ExitCodeOf(ChooseModel({spec.name, 3}).status()),
            kExitUsage);  // fewer layers than stages
}

TEST(DescribeTest, LeavesOnesOut) {
  const ModelSpec spec = *FindPreset("Qwen3-4B");
  EXPECT_EQ(Describe(spec.train), "TP 2, CP 2");
  EXPECT_EQ(Describe(spec.rollout), "2 x TP 2");
  EXPECT_EQ(Describe(TrainParallelism{}), "TP 1");
}

}  // namespace
}  // namespace xfer
