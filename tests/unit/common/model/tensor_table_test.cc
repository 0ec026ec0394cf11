#include "common/model/tensor_table.h"

#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace xfer {
namespace {

TEST(TensorTableTest, FindsWhatWasAdded) {
  TensorTable table;
  EXPECT_EQ(table.Add("a", DType::kBF16, {3, 4}), 0);
  EXPECT_EQ(table.Add("b", DType::kF32, {5}), 1);
  EXPECT_EQ(table.size(), 2);
  EXPECT_EQ(table.Find("b"), 1);
  EXPECT_EQ(table.Find("c"), -1);
  EXPECT_EQ(table[0].bytes(), 24);
  EXPECT_EQ(table.total_bytes(), 24 + 20);
}

TEST(TensorTableDeathTest, ANameTwiceIsAProgrammingError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TensorTable table;
  table.Add("a", DType::kBF16, {3});
  EXPECT_DEATH(table.Add("a", DType::kBF16, {3}), "");
}

TEST(BuildTensorTableTest, NamesShapesAndTypesOfAnIndexerLayer) {
  const absl::StatusOr<ModelSpec> spec = FindPreset("GLM-5_4layer");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<TensorTable> table = BuildTensorTable(spec->config);
  ASSERT_TRUE(table.ok()) << table.status();
  const auto expect = [&](absl::string_view name, Dims shape, DType dtype) {
    const TensorId id = table->Find(name);
    ASSERT_GE(id, 0) << name;
    EXPECT_EQ((*table)[id].shape, shape) << name;
    EXPECT_EQ((*table)[id].dtype, dtype) << name;
  };
  expect("model.embed_tokens.weight", {154880, 6144}, DType::kBF16);
  expect("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", {576, 6144}, DType::kBF16);
  expect("model.layers.3.self_attn.indexer.wq_b.weight", {4096, 2048}, DType::kBF16);
  expect("model.layers.3.self_attn.indexer.k_norm.bias", {128}, DType::kBF16);
  expect("model.layers.3.mlp.gate.e_score_correction_bias", {256}, DType::kF32);
  expect("model.layers.3.mlp.experts.255.down_proj.weight", {6144, 2048}, DType::kBF16);
  expect("model.layers.2.mlp.down_proj.weight", {6144, 12288}, DType::kBF16);
  EXPECT_EQ(table->Find("model.layers.2.mlp.gate.weight"), -1);
  EXPECT_EQ(table->Find("model.layers.3.mlp.down_proj.weight"), -1);
  EXPECT_EQ(table->Find("model.layers.4.input_layernorm.weight"), -1);
}

TEST(BuildTensorTableTest, ATiedModelHasNoHead) {
  const absl::StatusOr<ModelSpec> spec = FindPreset("Qwen3-4B");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<TensorTable> table = BuildTensorTable(spec->config);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->Find("lm_head.weight"), -1);
}

}  // namespace
}  // namespace xfer
