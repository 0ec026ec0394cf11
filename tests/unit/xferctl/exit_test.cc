#include "xferctl/exit.h"

#include <gtest/gtest.h>

#include "client/coordinator_client.h"

namespace xfer {
namespace {

TEST(ExitTest, CodesFollowTheKindOfError) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("a checkpoint")), 1);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("an agent")), 1);
  EXPECT_EQ(ExitCodeOf(UsageError("a flag")), 2);
  EXPECT_EQ(ExitCodeOf(AsUsageError(absl::NotFoundError("a model"))), 2);
  const absl::Status unreachable =
      CoordinatorClient::Connect("127.0.0.1:1", absl::Milliseconds(50)).status();
  EXPECT_EQ(ExitCodeOf(unreachable), 3);
}

TEST(ExitTest, ContextKeepsTheKind) {
  const absl::Status status = InContext(UsageError("bad"), "--flag");
  EXPECT_EQ(ExitCodeOf(status), 2);
  EXPECT_EQ(OneLine(status), "--flag: bad");
  EXPECT_TRUE(InContext(absl::OkStatus(), "--flag").ok());
}

TEST(ExitTest, MessagesAreOneLine) {
  EXPECT_EQ(OneLine(absl::InternalError("a\nb\r\nc\n")), "a b c");
  EXPECT_EQ(OneLine(absl::Status(absl::StatusCode::kAborted, "")), "ABORTED");
}

}  // namespace
}  // namespace xfer
