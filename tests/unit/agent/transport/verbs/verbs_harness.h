// A sending and a receiving verbs transport in one process, joined by direct calls in place of
// gRPC; for the conformance suite and for tests of the transport's own. Needs RDMA devices: run it
// by tests/rdma_vm.
#ifndef XFER_TESTS_UNIT_AGENT_TRANSPORT_VERBS_VERBS_HARNESS_H_
#define XFER_TESTS_UNIT_AGENT_TRANSPORT_VERBS_VERBS_HARNESS_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "agent/transport/verbs/verbs.h"
#include "tests/unit/agent/transport/harness.h"

namespace xfer {

// Calls the receiver that is attached, as a gRPC server would: one that is detached cannot be
// reached, and detaching waits for the calls that run.
class DirectControl final : public VerbsControl {
 public:
  void Attach(VerbsTransport* receiver) {
    absl::MutexLock lock(&mu_);
    receiver_ = receiver;
  }
  void Detach() {
    absl::MutexLock lock(&mu_);
    receiver_ = nullptr;
    while (calls_ > 0) idle_.Wait(&mu_);
  }

  absl::StatusOr<v1::VerbsReply> Call(const PeerAddress&, const v1::VerbsRequest& request,
                                      absl::Time) override {
    VerbsTransport* receiver = nullptr;
    {
      absl::MutexLock lock(&mu_);
      receiver = receiver_;
      if (receiver == nullptr) return absl::UnavailableError("connection refused");
      ++calls_;
    }
    absl::StatusOr<v1::VerbsReply> reply = receiver->Serve(request);
    absl::MutexLock lock(&mu_);
    if (--calls_ == 0) idle_.SignalAll();
    return reply;
  }

 private:
  absl::Mutex mu_;
  absl::CondVar idle_;
  VerbsTransport* receiver_ = nullptr;
  int calls_ = 0;
};

// Registers memory while someone uses it. The suite's vectors come and go at the same addresses,
// which a rank's memory does not.
class MemoryUsers {
 public:
  void Use(Transport& transport, const Memory& memory) {
    absl::MutexLock lock(&mu_);
    const auto key = std::pair(memory.base, memory.bytes);
    if (users_[key]++ == 0) {
      const absl::Status status = transport.Register(memory);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  void Drop(Transport& transport, const Memory& memory) {
    absl::MutexLock lock(&mu_);
    const auto it = users_.find(std::pair(memory.base, memory.bytes));
    if (it == users_.end() || --it->second > 0) return;
    users_.erase(it);
    transport.Unregister(memory);
  }

 private:
  absl::Mutex mu_;
  std::map<std::pair<std::byte*, uint64_t>, int> users_;
};

// Registers a transfer's destination from Enter() to Leave().
class RegisteringTable final : public ReceiveTable {
 public:
  explicit RegisteringTable(ReceiveTable* inner) : inner_(inner) {}
  void SetTransport(Transport* transport) { transport_ = transport; }

  absl::StatusOr<Target> Enter(const SyncKey& sync, TransferId transfer) override {
    absl::StatusOr<Target> target = inner_->Enter(sync, transfer);
    if (!target.ok()) return target;
    users_.Use(*transport_, target->memory);
    absl::MutexLock lock(&mu_);
    memories_[{sync, transfer}] = target->memory;
    return target;
  }
  void Leave(const SyncKey& sync, TransferId transfer) override {
    Memory memory;
    {
      absl::MutexLock lock(&mu_);
      memory = memories_[{sync, transfer}];
    }
    users_.Drop(*transport_, memory);
    inner_->Leave(sync, transfer);
  }
  void Arrived(const SyncKey& sync, TransferId transfer, uint64_t begin, uint64_t end) override {
    inner_->Arrived(sync, transfer, begin, end);
  }
  absl::Status Finished(const SyncKey& sync, TransferId transfer, uint64_t digest) override {
    return inner_->Finished(sync, transfer, digest);
  }

 private:
  ReceiveTable* const inner_;
  Transport* transport_ = nullptr;
  MemoryUsers users_;
  absl::Mutex mu_;
  absl::flat_hash_map<TransferKey, Memory> memories_;
};

// Registers the source of each range that is posted, until the endpoint goes.
class RegisteringTransport final : public Transport {
 public:
  explicit RegisteringTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  absl::string_view name() const override { return inner_->name(); }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress& peer,
                                                    absl::Time deadline) override {
    absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = inner_->Connect(peer, deadline);
    if (!endpoint.ok()) return endpoint;
    return std::make_unique<RegisteringEndpoint>(this, *std::move(endpoint));
  }

 private:
  class RegisteringEndpoint final : public Endpoint {
   public:
    RegisteringEndpoint(RegisteringTransport* owner, std::unique_ptr<Endpoint> inner)
        : owner_(owner), inner_(std::move(inner)) {}
    ~RegisteringEndpoint() override {
      inner_.reset();
      for (const auto& [base, bytes] : used_) owner_->users_.Drop(*owner_->inner_, {base, bytes});
    }
    absl::Status PostRange(const SendRange& range) override {
      const auto key = std::pair(range.source.base, range.source.bytes);
      if (!CheckRange(range).ok()) return inner_->PostRange(range);
      const auto old = used_.find(key.first);
      if (old != used_.end() && old->second != key.second) {
        owner_->users_.Drop(*owner_->inner_, {old->first, old->second});
        used_.erase(old);
      }
      if (used_.insert(key).second) owner_->users_.Use(*owner_->inner_, range.source);
      return inner_->PostRange(range);
    }
    absl::Status PostFinish(const SyncKey& sync, const Transfer& transfer,
                            uint64_t digest) override {
      return inner_->PostFinish(sync, transfer, digest);
    }
    absl::Status Poll(absl::Duration timeout, std::vector<Completion>& out) override {
      return inner_->Poll(timeout, out);
    }

   private:
    RegisteringTransport* const owner_;
    std::unique_ptr<Endpoint> inner_;
    std::map<std::byte*, uint64_t> used_;
  };

  std::unique_ptr<Transport> inner_;
  MemoryUsers users_;
};

inline std::string FromEnv(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// Short limits, for a guest under emulation.
inline verbs::Tuning TestTuning(const std::string& nics) {
  verbs::Tuning tuning;
  tuning.nics = absl::StrSplit(nics, '+');
  tuning.queue_pairs = 2;
  tuning.chunk_bytes = 256 << 10;
  tuning.list_bytes = 1 << 20;
  tuning.queue_bytes = 4 << 20;
  tuning.ack_timeout = 16;  // 0.27 s, 7 times: a loaded host stops the guest for that long
  return tuning;
}
inline std::string SenderNics() { return FromEnv("XFER_TEST_SENDER_NICS", "rxe0"); }
inline std::string ReceiverNics() { return FromEnv("XFER_TEST_RECEIVER_NICS", "rxe0"); }

// Transports without any help: the test registers.
struct VerbsPair {
  explicit VerbsPair(ReceiveTable* table,
                     const verbs::Tuning& sender_tuning = TestTuning(SenderNics()),
                     const verbs::Tuning& receiver_tuning = TestTuning(ReceiverNics())) {
    absl::StatusOr<std::unique_ptr<VerbsTransport>> made =
        MakeVerbsTransport({"receiver", 7, table, control, receiver_tuning});
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) receiver = *std::move(made);
    control->Attach(receiver.get());
    made = MakeVerbsTransport({"sender", 8, &unused, control, sender_tuning});
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) sender = *std::move(made);
  }
  ~VerbsPair() { KillReceiver(); }
  void KillReceiver() {
    if (receiver != nullptr) receiver->StopReceiving();
    control->Detach();
    receiver.reset();
  }
  PeerAddress peer() const { return {"receiver", 7, ""}; }

  std::shared_ptr<DirectControl> control = std::make_shared<DirectControl>();
  FakeReceiveTable unused;
  std::unique_ptr<VerbsTransport> receiver;
  std::unique_ptr<VerbsTransport> sender;
};

class VerbsHarness final : public Harness {
 public:
  VerbsHarness() : registering_(&table_), pair_(&registering_) {
    registering_.SetTransport(pair_.receiver.get());
    sender_ = std::make_unique<RegisteringTransport>(std::move(pair_.sender));
  }
  Transport& sender() override { return *sender_; }
  PeerAddress peer() const override { return pair_.peer(); }
  bool KillReceiver() override {
    pair_.KillReceiver();
    return true;
  }

 private:
  RegisteringTable registering_;
  VerbsPair pair_;
  std::unique_ptr<Transport> sender_;
};

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_TRANSPORT_VERBS_VERBS_HARNESS_H_
