#include "agent/service/job_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/layout/layout.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::Job MakeJob() {
  ModelSpec spec = *FindPreset("Qwen3-4B");
  v1::Job job;
  job.set_name("job");
  job.set_spec_json(ToJson(*Shrink(spec)));
  return job;
}

TEST(JobModels, BuildsAModelOnce) {
  JobModels models;
  v1::Job job = MakeJob();
  auto first = models.Get(job);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*models.Get(job), *first);
  EXPECT_GT((*first)->tensors.size(), 0);
  job.set_spec_json("{");
  const absl::Status status = models.Get(job).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("spec of job job"));
}

TEST(JobModels, ChecksRanks) {
  JobModels models;
  auto model = *models.Get(MakeJob());
  const int32_t world = model->spec.train.world;
  const int32_t size = model->spec.rollout.gpus_per_engine;
  const int32_t engines = model->spec.rollout.engines();
  EXPECT_TRUE(CheckRank(*model, {Role::kTrainer, 0, world - 1}, world).ok());
  EXPECT_TRUE(CheckRank(*model, {Role::kRollout, engines - 1, size - 1}, size).ok());
  const auto message = [&](const RankId& id, int32_t said) {
    const absl::Status status = CheckRank(*model, id, said);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  EXPECT_THAT(message({Role::kTrainer, 0, 0}, world + 1), HasSubstr("one of"));
  EXPECT_THAT(message({Role::kTrainer, 0, world}, world), HasSubstr("does not exist"));
  EXPECT_THAT(message({Role::kRollout, engines, 0}, size), HasSubstr("does not exist"));
  EXPECT_THAT(message({Role::kRollout, 0, size}, size), HasSubstr("does not exist"));
}

// Places all tensors of a layout one behind the other; returns the bytes they take.
uint64_t Place(const RankLayout& layout, std::vector<TensorPlacement>& placements) {
  uint64_t offset = 0;
  for (const LocalTensor& tensor : layout.tensors) {
    TensorPlacement& placement = placements.emplace_back();
    placement.name = tensor.name;
    placement.dtype = tensor.dtype;
    placement.shape = tensor.shape;
    placement.offset = offset;
    offset += NumElements(tensor.shape) * SizeOf(tensor.dtype);
  }
  return offset;
}

TEST(JobModels, ManifestNeedsEveryTensor) {
  JobModels models;
  auto model = *models.Get(MakeJob());
  const RankId id{Role::kRollout, 0, 0};
  const RankLayout layout = *SglangLayout(model->spec, model->tensors, 0);
  std::vector<TensorPlacement> placements;
  const std::vector<uint64_t> regions = {Place(layout, placements)};
  auto manifest = ManifestOf(*model, id, placements, regions);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_GT(manifest->bytes(), 0u);
  const std::string lost = placements.back().name;
  placements.pop_back();
  EXPECT_THAT(std::string(ManifestOf(*model, id, placements, regions).status().message()),
              HasSubstr(lost));
}

// What a rank of another place in the world has does not pass for its own: neither the tensors of
// another pipeline stage nor the shapes of another tensor parallel size.
TEST(JobModels, TensorsThatDisagreeWithTheRanksCoordinatesAreNamed) {
  ModelSpec spec = *Shrink(*FindPreset("Qwen3-235B-A22B-Instruct-2507"));
  spec.config = *KeepLayers(spec.config, 7);
  spec.train.last_stage_layers = 1;
  v1::Job job;
  job.set_name("job");
  job.set_spec_json(ToJson(spec));
  JobModels models;
  auto model = *models.Get(job);
  const auto refusal = [&](const RankId& id, const RankLayout& layout) {
    std::vector<TensorPlacement> placements;
    const std::vector<uint64_t> regions = {Place(layout, placements)};
    const absl::Status status = ManifestOf(*model, id, placements, regions).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const int32_t last = spec.train.world - 1;
  const RankLayout last_stage = *MegatronLayout(spec, model->tensors, last);
  EXPECT_THAT(
      refusal({Role::kTrainer, 0, 0}, last_stage),
      AllOf(HasSubstr("decoder.final_layernorm.weight"), HasSubstr("the rank's coordinates")));
  EXPECT_THAT(
      refusal({Role::kTrainer, 0, last}, *MegatronLayout(spec, model->tensors, 0)),
      AllOf(HasSubstr("embedding.word_embeddings.weight"), HasSubstr("the rank's coordinates")));

  ModelSpec narrow = spec;
  narrow.train.tp = 2;
  narrow.train.cp = 2 * spec.train.cp;
  EXPECT_THAT(refusal({Role::kTrainer, 0, 0}, *MegatronLayout(narrow, model->tensors, 0)),
              AllOf(HasSubstr("has shape [512, 40]; this rank's layout needs [256, 40]"),
                    HasSubstr("the rank's coordinates")));
}

}  // namespace
}  // namespace xfer
