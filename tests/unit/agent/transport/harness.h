// A sending transport, a receiving one (the same, for local) and a receive table; for each
// transport that the conformance suite runs over.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_HARNESS_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_HARNESS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/transport/faulty.h"
#include "agent/transport/local.h"
#include "agent/transport/tcp.h"
#include "tests/unit/agent/transport/fake_receive_table.h"
#include "tests/unit/agent/transport/test_transfers.h"

namespace xfer {

class Harness {
 public:
  virtual ~Harness() = default;
  FakeReceiveTable& table() { return table_; }
  virtual Transport& sender() = 0;
  virtual PeerAddress peer() const = 0;
  // Ends the receiving transport while the sending one lives on. False where there is no such
  // thing.
  virtual bool KillReceiver() { return false; }

  std::unique_ptr<Endpoint> Connect() {
    auto endpoint = sender().Connect(peer(), absl::Now() + absl::Seconds(10));
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    return endpoint.ok() ? *std::move(endpoint) : nullptr;
  }

 protected:
  FakeReceiveTable table_;
};

class LocalHarness final : public Harness {
 public:
  LocalHarness() : transport_(MakeLocalTransport({.threads = 2, .table = &table_})) {}
  explicit LocalHarness(const FaultPlan& faults) : LocalHarness() {
    transport_ = MakeFaultyTransport(std::move(transport_), faults);
  }
  Transport& sender() override { return *transport_; }
  PeerAddress peer() const override { return {"self", 1, ""}; }

 private:
  std::unique_ptr<Transport> transport_;
};

inline TcpOptions TestTcpOptions(const std::string& node, uint64_t incarnation,
                                 ReceiveTable* table) {
  TcpOptions options;
  options.node = node;
  options.incarnation = incarnation;
  options.streams = 3;
  options.io_threads = 2;
  options.table = table;
  return options;
}

class TcpHarness final : public Harness {
 public:
  TcpHarness() {
    receiver_ = *MakeTcpTransport(TestTcpOptions("receiver", 7, &table_));
    port_ = receiver_->port();
    sender_ = *MakeTcpTransport(TestTcpOptions("sender", 8, &unused_));
  }
  explicit TcpHarness(const FaultPlan& faults) : TcpHarness() {
    sender_ = MakeFaultyTransport(std::move(sender_), faults);
  }
  Transport& sender() override { return *sender_; }
  PeerAddress peer() const override { return {"receiver", 7, absl::StrCat("127.0.0.1:", port_)}; }
  bool KillReceiver() override {
    receiver_.reset();
    return true;
  }

 private:
  FakeReceiveTable unused_;
  std::unique_ptr<TcpTransport> receiver_;
  std::unique_ptr<Transport> sender_;
  uint16_t port_ = 0;
};

struct HarnessFactory {
  std::string name;
  std::function<std::unique_ptr<Harness>()> make;
};

// Posts, polling whenever the queue is full.
inline absl::Status Post(Endpoint& endpoint, const SendRange& range,
                         std::vector<Completion>& done) {
  while (true) {
    const absl::Status status = endpoint.PostRange(range);
    if (!absl::IsUnavailable(status)) return status;
    if (absl::Status polled = endpoint.Poll(absl::Seconds(10), done); !polled.ok()) return polled;
  }
}

// How long a test waits for what must come: 20 s, or more in a slow virtual machine.
inline absl::Duration TestLimit() {
  const char* seconds = std::getenv("XFER_TEST_LIMIT_SECONDS");
  return absl::Seconds(seconds == nullptr ? 20 : std::max(1, std::atoi(seconds)));
}

// Polls until there are `count` completions or an error; TestLimit() at most.
inline absl::Status PollFor(Endpoint& endpoint, size_t count, std::vector<Completion>& done) {
  const absl::Time deadline = absl::Now() + TestLimit();
  while (done.size() < count) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(done.size(), " of ", count, " completions"));
    }
    if (absl::Status status = endpoint.Poll(absl::Milliseconds(100), done); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

// The finish's completion, waited for up to TestLimit(); or the endpoint's error.
inline absl::Status WaitForFinish(Endpoint& endpoint, TransferId transfer,
                                  std::vector<Completion>& done) {
  const absl::Time deadline = absl::Now() + TestLimit();
  while (true) {
    for (const Completion& completion : done) {
      if (completion.finish && completion.transfer == transfer) return completion.status;
    }
    if (absl::Now() > deadline) return absl::DeadlineExceededError("the test's own limit");
    if (absl::Status status = endpoint.Poll(absl::Milliseconds(100), done); !status.ok())
      return status;
  }
}

// Sends a whole transfer in ranges of `step` and says what its finish came to.
inline absl::Status SendAll(Endpoint& endpoint, const SyncKey& sync, const Transfer& transfer,
                            std::vector<std::byte>& source, uint64_t step = 1 << 20) {
  std::vector<Completion> done;
  for (const SendRange& range : Ranges(sync, transfer, MemoryOf(source), step)) {
    if (absl::Status status = Post(endpoint, range, done); !status.ok()) return status;
  }
  absl::Status status = endpoint.PostFinish(sync, transfer, SourceDigest(transfer, source));
  if (!status.ok()) return status;
  return WaitForFinish(endpoint, transfer.id, done);
}

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_HARNESS_H_
