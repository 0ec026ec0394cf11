#include "xferctl/proto_json.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "xfer/v1/coordinator.pb.h"

namespace xfer {
namespace {

using nlohmann::json;

TEST(ProtoJsonTest, NumbersEnumsListsMapsAndMessages) {
  v1::Sync sync;
  sync.set_id(uint64_t{1} << 60);
  sync.set_state(v1::SYNC_STATE_DONE);
  sync.set_mode(v1::MODE_P2P);
  v1::RankTiming* rank = sync.add_ranks();
  rank->mutable_id()->set_role(v1::ROLE_ROLLOUT);
  rank->mutable_id()->set_rank(1);
  (*rank->mutable_bytes_by_transport())["tcp"] = 5;
  const json document = ToJson(sync);
  EXPECT_EQ(document.at("id"), uint64_t{1} << 60);
  EXPECT_EQ(document.at("state"), "done");
  EXPECT_EQ(document.at("mode"), "p2p");
  EXPECT_EQ(document.at("version"), 0);
  EXPECT_EQ(document.at("job"), "");
  EXPECT_EQ(document.at("plan_cached"), false);
  EXPECT_EQ(document.at("outcome"), nullptr);
  EXPECT_EQ(document.at("engines"), json::array());
  EXPECT_EQ(document.at("ranks").at(0).at("id"),
            (json{{"role", "rollout"}, {"engine", 0}, {"rank", 1}}));
  EXPECT_EQ(document.at("ranks").at(0).at("bytes_by_transport"), (json{{"tcp", 5}}));
}

TEST(ProtoJsonTest, ASpecIsAnObject) {
  v1::Job job;
  job.set_spec_json(R"({"name": "Qwen3-4B"})");
  EXPECT_EQ(ToJson(job).at("spec").at("name"), "Qwen3-4B");
  EXPECT_FALSE(ToJson(job).contains("spec_json"));
  job.set_spec_json("not json");
  EXPECT_EQ(ToJson(job).at("spec"), nullptr);
}

TEST(ProtoJsonTest, UnknownEnumNumbersAreShown) {
  EXPECT_EQ(EnumText(*v1::NodeState_descriptor(), v1::NODE_STATE_LOST), "lost");
  EXPECT_EQ(EnumText(*v1::SyncState_descriptor(), 99), "99");
}

}  // namespace
}  // namespace xfer
