#include "coordinator/registry/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace xfer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelsTest : public ::testing::Test {
 protected:
  ModelsTest() : store_(*Store::Open("")), models_(store_.get()) {}

  static std::string Document(const std::function<void(json&)>& change) {
    json document = json::parse(ToJson(*FindPreset("Qwen3-30B-A3B")));
    document["name"] = "mine";
    change(document);
    return document.dump();
  }
  static std::string Mine() {
    return Document([](json&) {});
  }
  void ExpectRefused(const std::string& document, absl::StatusCode code, const std::string& part) {
    const absl::Status status = models_.Add(document, false).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  std::unique_ptr<Store> store_;
  Models models_;
};

TEST_F(ModelsTest, KnowsThePresetsSorted) {
  const std::vector<v1::Model> all = models_.List();
  ASSERT_EQ(all.size(), Presets().size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].name(), Presets()[i].name);
    EXPECT_EQ(models_.Get(all[i].name())->spec_json(), ToJson(Presets()[i]));
  }
  EXPECT_THAT(std::string(models_.Get("mine").status().message()),
              AllOf(HasSubstr("\"mine\""), HasSubstr("Qwen3-4B")));
}

TEST_F(ModelsTest, AddedModelsAreThereAndInTheStore) {
  ASSERT_TRUE(models_.Add(Mine(), false).ok());
  EXPECT_EQ(models_.List().size(), Presets().size() + 1);
  Models again(store_.get());
  ASSERT_TRUE(again.Restore().ok());
  EXPECT_EQ(again.Get("mine")->spec_json(), models_.Get("mine")->spec_json());
}

TEST_F(ModelsTest, TheSameAgainIsNoErrorWhateverTheOrderOfItsFields) {
  ASSERT_TRUE(models_.Add(Mine(), false).ok());
  const nlohmann::ordered_json document = nlohmann::ordered_json::parse(Mine());
  nlohmann::ordered_json reversed;
  for (auto it = document.rbegin(); it != document.rend(); ++it) reversed[it.key()] = it.value();
  EXPECT_TRUE(models_.Add(reversed.dump(), false).ok());
  EXPECT_EQ(models_.List().size(), Presets().size() + 1);
}

TEST_F(ModelsTest, ATakenNameIsRefusedWithTheDifferenceUnlessReplaced) {
  ASSERT_TRUE(models_.Add(Mine(), false).ok());
  const std::string other = Document([](json& d) { d["transfer_timeout_s"] = 77; });
  const absl::Status taken = models_.Add(other, false).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()),
              AllOf(HasSubstr("mine"), HasSubstr("transfer_timeout_s is 300 there and 77 here")));
  ASSERT_TRUE(models_.Add(other, true).ok());
  EXPECT_EQ(ParseModelSpec(models_.Get("mine")->spec_json())->transfer_timeout_s, 77);
  Models again(store_.get());
  ASSERT_TRUE(again.Restore().ok());
  EXPECT_EQ(ParseModelSpec(again.Get("mine")->spec_json())->transfer_timeout_s, 77);
}

TEST_F(ModelsTest, APresetCanBeReplacedToo) {
  const std::string other = Document([](json& d) {
    d["name"] = "Qwen3-30B-A3B";
    d["nodes"] = 5;
  });
  ExpectRefused(other, absl::StatusCode::kAlreadyExists, "nodes is 4 there and 5 here");
  EXPECT_TRUE(models_.Add(other, true).ok());
  EXPECT_EQ(models_.List().size(), Presets().size());
}

TEST_F(ModelsTest, ABrokenProfileNamesRuleAndValues) {
  ExpectRefused(Document([](json& d) { d["train"]["tp"] = 8; }), absl::StatusCode::kInvalidArgument,
                "train.tp = 8 must divide num_key_value_heads = 4");
  ExpectRefused(Document([](json& d) { d["config"]["architectures"] = {"MambaForCausalLM"}; }),
                absl::StatusCode::kInvalidArgument, "unknown architecture \"MambaForCausalLM\"");
  ExpectRefused(Document([](json& d) { d["name"] = "../up"; }), absl::StatusCode::kInvalidArgument,
                "../up");
  ExpectRefused("no json", absl::StatusCode::kInvalidArgument, "model file");
  EXPECT_EQ(models_.List().size(), Presets().size());
}

TEST_F(ModelsTest, ThereIsALimit) {
  absl::Status status;
  size_t added = 0;
  for (; status.ok() && added < 1'000; ++added) {
    status =
        models_.Add(Document([&](json& d) { d["name"] = absl::StrCat("mine-", added); }), false)
            .status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(models_.List().size(), 256u);
}

}  // namespace
}  // namespace xfer
