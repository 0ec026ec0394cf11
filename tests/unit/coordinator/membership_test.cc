#include "coordinator/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Events : public MembershipListener {
 public:
  void OnNodeJoined(const NodeHello& hello) override {
    log.push_back(absl::StrCat("joined ", hello.name, "#", hello.incarnation));
  }
  void OnSessionBroken(const std::string& node, uint64_t incarnation, const std::string&) override {
    log.push_back(absl::StrCat("broken ", node, "#", incarnation));
  }
  void OnNodeLost(const std::string& node, uint64_t incarnation, const std::string&) override {
    log.push_back(absl::StrCat("lost ", node, "#", incarnation));
  }
  void CloseSession(uint64_t session, const absl::Status&) override {
    log.push_back(absl::StrCat("close ", session));
  }
  std::vector<std::string> Take() { return std::exchange(log, {}); }
  std::vector<std::string> log;
};

NodeHello Hello(const std::string& name, uint64_t incarnation, int port = 0) {
  const int p = port != 0 ? port : 1000 + static_cast<int>(name.back());
  return {
      name, incarnation, absl::StrCat("10.0.0.1:", p), absl::StrCat("10.0.0.1:", p + 5000), "test",
      1};
}

class MembershipTest : public ::testing::Test {
 protected:
  // A coordinator that runs as it should: ticks come when due.
  void Pass(absl::Duration d) {
    for (; d > absl::ZeroDuration(); d -= absl::Milliseconds(500)) {
      clock_.Advance(absl::Milliseconds(500));
      membership_.Tick();
    }
  }
  NodeState StateOf(const std::string& name) { return membership_.Find(name)->state; }

  FakeClock clock_{1'000'000'000};
  Events events_;
  Membership membership_{{&clock_, absl::Seconds(5), absl::Milliseconds(500)}, &events_};
};

TEST_F(MembershipTest, ASilentNodeIsLostAfterItsLeaseAndNotBefore) {
  const uint64_t session = *membership_.Join(Hello("a", 1));
  EXPECT_THAT(events_.Take(), ElementsAre("joined a#1"));
  Pass(absl::Seconds(5));
  EXPECT_EQ(StateOf("a"), NodeState::kAlive);
  EXPECT_THAT(events_.Take(), IsEmpty());
  Pass(absl::Milliseconds(500));
  EXPECT_EQ(StateOf("a"), NodeState::kLost);
  EXPECT_THAT(events_.Take(), ElementsAre("lost a#1", absl::StrCat("close ", session)));
  EXPECT_FALSE(membership_.Heartbeat(session, 0).ok());
}

TEST_F(MembershipTest, HeartbeatsRenewTheLease) {
  const uint64_t session = *membership_.Join(Hello("a", 1));
  for (int i = 0; i < 5; ++i) {
    Pass(absl::Seconds(4));
    ASSERT_TRUE(membership_.Heartbeat(session, 42).ok());
  }
  EXPECT_EQ(StateOf("a"), NodeState::kAlive);
  EXPECT_EQ(membership_.Find("a")->clock_offset_ns, 42);
}

TEST_F(MembershipTest, AStalledCoordinatorBlamesNobody) {
  ASSERT_TRUE(membership_.Join(Hello("a", 1)).ok());
  Pass(absl::Seconds(3));
  clock_.Advance(absl::Minutes(10));  // no tick: it stood still
  membership_.Tick();
  EXPECT_EQ(StateOf("a"), NodeState::kAlive);
  Pass(absl::Seconds(5));
  EXPECT_EQ(StateOf("a"), NodeState::kAlive) << "a renewed lease is a whole one";
  Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf("a"), NodeState::kLost);
}

TEST_F(MembershipTest, AStreamThatEndsMakesSuspectAndTheLeaseDecides) {
  const uint64_t session = *membership_.Join(Hello("a", 1));
  Pass(absl::Seconds(2));
  events_.Take();
  membership_.Disconnect(session, "reset");
  EXPECT_THAT(events_.Take(), ElementsAre("broken a#1"));
  EXPECT_EQ(StateOf("a"), NodeState::kSuspect);
  Pass(absl::Seconds(3));
  EXPECT_EQ(StateOf("a"), NodeState::kSuspect);
  Pass(absl::Seconds(1));
  EXPECT_THAT(events_.Take(), ElementsAre("lost a#1"));
}

TEST_F(MembershipTest, TheSameIncarnationComesBackWithinItsLease) {
  const uint64_t first = *membership_.Join(Hello("a", 1));
  membership_.Disconnect(first, "reset");
  events_.Take();
  const uint64_t second = *membership_.Join(Hello("a", 1));
  EXPECT_NE(first, second);
  EXPECT_THAT(events_.Take(), IsEmpty()) << "it was never lost, so it does not join";
  membership_.Disconnect(first, "late news");  // of the old stream: no effect
  EXPECT_EQ(StateOf("a"), NodeState::kAlive);
}

TEST_F(MembershipTest, TheSameIncarnationReplacesItsOwnOpenSession) {
  const uint64_t first = *membership_.Join(Hello("a", 1));
  events_.Take();
  ASSERT_TRUE(membership_.Join(Hello("a", 1)).ok());
  EXPECT_THAT(events_.Take(), ElementsAre("broken a#1", absl::StrCat("close ", first)));
}

TEST_F(MembershipTest, ALostIncarnationJoinsAgain) {
  ASSERT_TRUE(membership_.Join(Hello("a", 1)).ok());
  Pass(absl::Seconds(6));
  events_.Take();
  ASSERT_TRUE(membership_.Join(Hello("a", 1)).ok());
  EXPECT_THAT(events_.Take(), ElementsAre("joined a#1"));
  EXPECT_EQ(StateOf("a"), NodeState::kAlive);
}

TEST_F(MembershipTest, ANewIncarnationReplacesADeadOneAtOnce) {
  const uint64_t first = *membership_.Join(Hello("a", 1));
  membership_.Disconnect(first, "killed");
  events_.Take();
  ASSERT_TRUE(membership_.Join(Hello("a", 2)).ok());
  EXPECT_THAT(events_.Take(), ElementsAre("lost a#1", "joined a#2"));
  EXPECT_EQ(membership_.Find("a")->hello.incarnation, 2u);
}

TEST_F(MembershipTest, ANewIncarnationReplacesOneWhoseLeaseHasPassedThoughItsStreamHangs) {
  const uint64_t first = *membership_.Join(Hello("a", 1));
  events_.Take();
  clock_.Advance(absl::Seconds(6));  // before any tick
  ASSERT_TRUE(membership_.Join(Hello("a", 2)).ok());
  EXPECT_THAT(events_.Take(), ElementsAre("lost a#1", "joined a#2", absl::StrCat("close ", first)));
}

TEST_F(MembershipTest, TwoLivingAgentsUnderOneNameAreNotTaken) {
  ASSERT_TRUE(membership_.Join(Hello("a", 1, 2001)).ok());
  const absl::Status status = membership_.Join(Hello("a", 2, 2002)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("10.0.0.1:2001"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("10.0.0.1:2002"));
  EXPECT_EQ(membership_.Find("a")->hello.incarnation, 1u);
}

TEST_F(MembershipTest, TwoLivingAgentsAtOneAddressAreNotTaken) {
  const uint64_t first = *membership_.Join(Hello("a", 1, 2001));
  NodeHello second = Hello("b", 2, 2002);
  second.data_address = Hello("a", 1, 2001).data_address;
  const absl::Status status = membership_.Join(second).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node a"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("node b"));
  // Once the first is gone, the second may have the address, and the first is dead for good.
  membership_.Disconnect(first, "killed");
  events_.Take();
  ASSERT_TRUE(membership_.Join(second).ok());
  EXPECT_THAT(events_.Take(), ElementsAre("lost a#1", "joined b#2"));
}

TEST_F(MembershipTest, GoodbyeIsBelievedAtOnce) {
  const uint64_t session = *membership_.Join(Hello("a", 1));
  events_.Take();
  membership_.Leave(session, "maintenance");
  EXPECT_THAT(events_.Take(), ElementsAre("lost a#1", absl::StrCat("close ", session)));
  membership_.Disconnect(session, "stream ended");
  EXPECT_THAT(events_.Take(), IsEmpty());
}

TEST_F(MembershipTest, ListsByName) {
  ASSERT_TRUE(membership_.Join(Hello("b", 1)).ok());
  ASSERT_TRUE(membership_.Join(Hello("a", 2)).ok());
  const std::vector<NodeView> nodes = membership_.List();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].hello.name, "a");
  EXPECT_EQ(membership_.Find("c").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace xfer
