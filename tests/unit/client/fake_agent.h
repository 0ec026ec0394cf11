// An agent that takes registrations and lets a test drive the sessions.
#ifndef XFER_TESTS_UNIT_CLIENT_FAKE_AGENT_H_
#define XFER_TESTS_UNIT_CLIENT_FAKE_AGENT_H_

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/memory/fd_receiver.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gtest/gtest.h"
#include "xfer/v1/agent.grpc.pb.h"

namespace xfer {

inline constexpr absl::Duration kTestPatience = absl::Seconds(20);

// A directory of a test's own, removed at the end.
class TestDirectory {
 public:
  TestDirectory() {
    std::string path = "/tmp/xfer-client-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FakeAgent final : public v1::LocalAgent::Service {
 public:
  struct Registration {
    v1::RankHeader header;
    std::vector<v1::TensorPlacement> tensors;
    std::vector<UniqueFd> fds;
  };

  FakeAgent() : socket_(directory_.path() + "/agent.sock") {
    auto fds = FdReceiver::Start({.path = socket_ + ".fd"});
    EXPECT_TRUE(fds.ok()) << fds.status();
    fds_ = *std::move(fds);
    auto server = RpcServer::Start({.address = "unix:" + socket_, .services = {this}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~FakeAgent() override { Shutdown(); }

  void Shutdown() {
    if (server_ != nullptr) server_->Shutdown(absl::ZeroDuration());
    server_.reset();
    fds_.reset();
  }

  const std::string& socket() const { return socket_; }
  void set_refusal(absl::Status refusal) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(refusal);
  }
  void set_attach(bool attach) {
    absl::MutexLock lock(&mu_);
    attach_ = attach;
  }

  // Sends to the session that is open.
  void Send(const v1::RankCommand& command) {
    absl::MutexLock lock(&mu_);
    ASSERT_NE(session_, nullptr);
    EXPECT_TRUE(session_->Write(command));
  }
  // Waits until `count` events have come in all and returns the last.
  v1::RankEvent WaitForEvent(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return events_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&enough), kTestPatience)) << events_.size();
    return events_.empty() ? v1::RankEvent() : events_[std::min(count, events_.size()) - 1];
  }
  std::vector<uint64_t> WaitForUnregistered(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return unregistered_.size() >= count;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&enough), kTestPatience));
    return unregistered_;
  }
  Registration& registration() {
    absl::MutexLock lock(&mu_);
    return registration_;
  }

 private:
  grpc::Status RegisterRank(grpc::ServerContext*,
                            grpc::ServerReader<v1::RegisterRankRequest>* reader,
                            v1::RegisterRankReply* reply) override {
    Registration got;
    v1::RegisterRankRequest request;
    while (reader->Read(&request)) {
      if (request.has_header()) got.header = request.header();
      got.tensors.insert(got.tensors.end(), request.tensors().begin(), request.tensors().end());
    }
    for (const v1::Region& region : got.header.regions()) {
      auto fd = fds_->Take(region.fd_token());
      if (!fd.ok()) return ToGrpc(fd.status());
      got.fds.push_back(*std::move(fd));
    }
    absl::MutexLock lock(&mu_);
    if (!refusal_.ok()) return ToGrpc(refusal_);
    registration_ = std::move(got);
    reply->set_registration_id(17);
    return grpc::Status::OK;
  }
  grpc::Status UnregisterRank(grpc::ServerContext*, const v1::UnregisterRankRequest* request,
                              v1::UnregisterRankReply*) override {
    absl::MutexLock lock(&mu_);
    unregistered_.push_back(request->registration_id());
    return grpc::Status::OK;
  }
  grpc::Status RankSession(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::RankCommand, v1::RankEvent>* stream) override {
    v1::RankEvent event;
    while (stream->Read(&event)) {
      absl::MutexLock lock(&mu_);
      events_.push_back(event);
      if (!event.has_attach() || !attach_) continue;
      session_ = stream;
      v1::RankCommand attached;
      attached.mutable_attached();
      stream->Write(attached);
    }
    absl::MutexLock lock(&mu_);
    session_ = nullptr;
    return grpc::Status::OK;
  }

  TestDirectory directory_;
  const std::string socket_;
  std::unique_ptr<FdReceiver> fds_;
  std::unique_ptr<RpcServer> server_;
  absl::Mutex mu_;
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  bool attach_ ABSL_GUARDED_BY(mu_) = true;
  Registration registration_ ABSL_GUARDED_BY(mu_);
  grpc::ServerReaderWriter<v1::RankCommand, v1::RankEvent>* session_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::vector<v1::RankEvent> events_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> unregistered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_CLIENT_FAKE_AGENT_H_
