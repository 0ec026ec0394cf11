#include <functional>
#include <string>

#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace xfer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

absl::Status With(const std::function<void(json&)>& change) {
  const absl::StatusOr<ModelSpec> spec = FindPreset("GLM-4.5-Air");
  EXPECT_TRUE(spec.ok()) << spec.status();
  json document = json::parse(ToJson(*spec));
  change(document);
  return ParseModelSpec(document.dump()).status();
}

void ExpectRefused(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(message));
}

TEST(ModelSpecJsonTest, RoundTrips) {
  for (const ModelSpec& spec : Presets()) {
    const std::string text = ToJson(spec);
    const absl::StatusOr<ModelSpec> back = ParseModelSpec(text);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(ToJson(*back), text);
    EXPECT_EQ(back->hf_repo, spec.hf_repo);
    EXPECT_EQ(back->train.last_stage_layers, spec.train.last_stage_layers);
    EXPECT_EQ(back->train.vocab_divisor, spec.train.vocab_divisor);
    EXPECT_EQ(back->rollout.moe_dense_tp, spec.rollout.moe_dense_tp);
    EXPECT_EQ(back->rollout.dp_lm_head, spec.rollout.dp_lm_head);
    EXPECT_EQ(back->buffer_size_broadcast_gb, spec.buffer_size_broadcast_gb);
    EXPECT_EQ(back->transfer_timeout_s, spec.transfer_timeout_s);
    EXPECT_EQ(back->published.has_value(), spec.published.has_value());
    EXPECT_EQ(json::parse(back->config.raw), json::parse(spec.config.raw));
  }
}

TEST(ModelSpecJsonTest, AMissingPartIsNamed) {
  EXPECT_TRUE(With([](json&) {}).ok());
  for (const char* field : {"name", "config", "train", "rollout"}) {
    ExpectRefused(With([&](json& d) { d.erase(field); }),
                  std::string("field ") + field + " is missing");
  }
}

TEST(ModelSpecJsonTest, AMisspeltFieldIsNamedWithTheKnownOnes) {
  ExpectRefused(With([](json& d) { d["nodez"] = 2; }), "unknown field \"nodez\"; known are name");
  ExpectRefused(With([](json& d) { d["train"]["tpp"] = 2; }), "train: unknown field \"tpp\"");
  ExpectRefused(With([](json& d) { d["rollout"]["tp"] = 2; }),
                "rollout: unknown field \"tp\"; known are world, gpus_per_engine");
  ExpectRefused(With([](json& d) { d["published"]["x"] = 2; }), "published: unknown field");
}

TEST(ModelSpecJsonTest, ABadValueIsShown) {
  ExpectRefused(With([](json& d) { d["train"]["tp"] = 0; }),
                "train: tp is 0; it must be an integer");
  ExpectRefused(With([](json& d) { d["train"]["pp"] = 4294967297; }), "pp is 4294967297");
  ExpectRefused(With([](json& d) { d["rollout"]["dp_attention"] = 1; }),
                "dp_attention is 1; it must be true or false");
  ExpectRefused(With([](json& d) { d["buffer_size_gb"] = -1.0; }), "buffer_size_gb is -1.0");
  ExpectRefused(With([](json& d) { d["buffer_size_gb"] = "1"; }), "buffer_size_gb is \"1\"");
  ExpectRefused(With([](json& d) { d["name"] = 3; }), "name is 3; it must be a string");
  ExpectRefused(With([](json& d) { d["train"] = 3; }), "train is 3; it must be an object");
  ExpectRefused(With([](json& d) { d["config"]["vocab_size"] = 0; }),
                "config.json: vocab_size is 0");
}

TEST(ModelSpecJsonTest, WhatIsNotSupportedIsRefusedByName) {
  ExpectRefused(With([](json& d) { d["rollout"]["pp"] = 2; }),
                "rollout: pp is 2; it must be 1: pipeline parallelism in the rollout");
  ExpectRefused(With([](json& d) { d["rollout"]["redundant_experts"] = 32; }),
                "redundant_experts is 32; it must be 0: redundant experts are not supported");
  ExpectRefused(With([](json& d) { d["train"]["virtual_pp"] = 2; }),
                "train: virtual_pp is 2; it must be 1: an interleaved virtual pipeline");
  EXPECT_TRUE(With([](json& d) {
                d["rollout"]["pp"] = 1;
                d["rollout"]["redundant_experts"] = 0;
                d["train"]["virtual_pp"] = 1;
              }).ok());
}

TEST(ModelSpecJsonTest, WhatFollowsFromItIsNotRead) {
  EXPECT_TRUE(With([](json& d) { d["derived"] = {{"padded_vocab", 3}}; }).ok());
}

TEST(ModelSpecJsonTest, TheProfileIsValidated) {
  ExpectRefused(With([](json& d) { d["train"]["ep"] = 7; }), "model GLM-4.5-Air: ");
}

}  // namespace
}  // namespace xfer
