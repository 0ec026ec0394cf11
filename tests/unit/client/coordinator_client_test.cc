#include "client/coordinator_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/server.h"
#include "xfer/v1/coordinator.grpc.pb.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Knows one job, "job"; its state changes `states` times and then stays as it is.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  explicit FakeCoordinator(int states) : states_(states) {}

 private:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* job) override {
    if (request->name() != "job") return {grpc::StatusCode::NOT_FOUND, "there is only \"job\""};
    job->set_name("job");
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::JobState>* writer) override {
    for (int i = 0; i < states_; ++i) {
      v1::JobState state;
      state.mutable_job()->set_generation(i);
      writer->Write(state);
    }
    absl::Notification never;
    while (!context->IsCancelled()) never.WaitForNotificationWithTimeout(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  }
  grpc::Status WatchSync(grpc::ServerContext*, const v1::WatchSyncRequest* request,
                         grpc::ServerWriter<v1::Sync>* writer) override {
    v1::Sync sync;
    sync.set_id(request->sync_id());
    sync.set_state(v1::SYNC_STATE_RUNNING);
    writer->Write(sync);
    sync.set_state(v1::SYNC_STATE_DONE);
    writer->Write(sync);
    return grpc::Status::OK;
  }

  const int states_;
};

class CoordinatorClientTest : public ::testing::Test {
 protected:
  CoordinatorClientTest()
      : server_(*RpcServer::Start({.address = "127.0.0.1:0", .services = {&service_}})) {
    address_ = absl::StrCat("127.0.0.1:", server_->port());
    client_ = *CoordinatorClient::Connect(address_, kPatience, &canceller_);
  }

  FakeCoordinator service_{3};
  std::unique_ptr<RpcServer> server_;
  std::string address_;
  CallCanceller canceller_;
  std::unique_ptr<CoordinatorClient> client_;
};

TEST_F(CoordinatorClientTest, PassesAnswersAndErrorsOn) {
  EXPECT_EQ(client_->GetJob("job")->name(), "job");
  const absl::Status status = client_->GetJob("other").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(status.message()), "there is only \"job\"");
  EXPECT_FALSE(IsUnreachable(status));
}

TEST_F(CoordinatorClientTest, WatchEndsWhenItsReaderHasSeenEnough) {
  uint64_t last = 0;
  const absl::Status status =
      client_->WatchJob("job", absl::Now() + kPatience, [&](const v1::JobState& state) {
        last = state.job().generation();
        return last < 1;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(last, 1u);
}

TEST_F(CoordinatorClientTest, WatchEndsAtItsDeadline) {
  int states = 0;
  const absl::Status status =
      client_->WatchJob("job", absl::Now() + absl::Milliseconds(300), [&](const v1::JobState&) {
        ++states;
        return true;
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(IsUnreachable(status));
  EXPECT_EQ(states, 3);
}

TEST_F(CoordinatorClientTest, WatchSyncReturnsTheLastState) {
  int states = 0;
  const auto sync =
      client_->WatchSync(8, absl::Now() + kPatience, [&](const v1::Sync&) { ++states; });
  ASSERT_TRUE(sync.ok()) << sync.status();
  EXPECT_EQ(sync->state(), v1::SYNC_STATE_DONE);
  EXPECT_EQ(sync->id(), 8u);
  EXPECT_EQ(states, 2);
}

TEST_F(CoordinatorClientTest, CancellationEndsRunningCallsWithItsReason) {
  absl::Notification watching;
  absl::Status status;
  std::thread watcher([&] {
    status = client_->WatchJob("job", absl::Now() + kPatience, [&](const v1::JobState& state) {
      if (state.job().generation() == 2) watching.Notify();
      return true;
    });
  });
  ASSERT_TRUE(watching.WaitForNotificationWithTimeout(kPatience));
  canceller_.Cancel(absl::AbortedError("agent node-1 has died"));
  watcher.join();
  EXPECT_EQ(status, absl::AbortedError("agent node-1 has died"));
  EXPECT_EQ(client_->GetJob("job").status(), absl::AbortedError("agent node-1 has died"));
  EXPECT_EQ(CoordinatorClient::Connect("127.0.0.1:1", kPatience, &canceller_).status().code(),
            absl::StatusCode::kAborted);
}

TEST_F(CoordinatorClientTest, ALostCoordinatorIsUnreachable) {
  server_->Shutdown(absl::ZeroDuration());
  const absl::Status status = client_->GetJob("job").status();
  EXPECT_TRUE(IsUnreachable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("no coordinator at ", address_)));
}

TEST(CoordinatorClientConnectTest, NobodyThereIsUnreachable) {
  const absl::Status status =
      CoordinatorClient::Connect("127.0.0.1:1", absl::Milliseconds(200)).status();
  EXPECT_TRUE(IsUnreachable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is xfer-coordinator running there?"));
}

TEST(CoordinatorClientConnectTest, ABadAddressIsNamed) {
  for (const char* address : {"", "host", ":7300", "host:", "host:0", "host:70000", "host:x"}) {
    const absl::Status status = CoordinatorClient::Connect(address, absl::Seconds(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_FALSE(IsUnreachable(status));
  }
}

TEST(CallCancellerTest, TheFirstReasonStands) {
  CallCanceller canceller;
  EXPECT_FALSE(canceller.WaitUntil(absl::Now() + absl::Milliseconds(1)));
  canceller.Cancel(absl::AbortedError("first"));
  canceller.Cancel(absl::AbortedError("second"));
  EXPECT_TRUE(canceller.WaitUntil(absl::Now() + kPatience));
  EXPECT_EQ(canceller.status().message(), "first");
}

}  // namespace
}  // namespace xfer
