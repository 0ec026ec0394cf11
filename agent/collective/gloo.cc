// Gloo reports errors by exceptions; none leaves this file.
#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "agent/collective/collective.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// A member passes a bucket on piece by piece, so that a tree's depth costs pieces, not buckets.
constexpr size_t kPieceBytes = 4 << 20;
// Receives that are posted ahead: a sender begins only once the receiver has posted.
constexpr size_t kPostedAhead = 4;
constexpr uint64_t kSlot = 1;  // broadcasts of a communicator follow each other

// Rounded up: what times out has then reached the deadline. At least 1 ms, since Gloo takes 0 for
// "without limit".
std::chrono::milliseconds Remaining(absl::Time deadline) {
  return std::chrono::milliseconds(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(deadline - absl::Now()) + 1));
}

// Runs something that calls Gloo.
template <typename F>
absl::Status Guarded(absl::Time deadline, const F& f) {
  try {
    f();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    std::string what = e.what();
    what = what.substr(0, what.find('\n'));
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("gloo: ", what));
    }
    return absl::UnavailableError(absl::StrCat("gloo: ", what));
  }
}

// Gloo's way to the rendezvous: each member's addresses under its rank as the key.
class RendezvousStore final : public gloo::rendezvous::Store {
 public:
  RendezvousStore(Rendezvous& rendezvous, absl::Time deadline)
      : rendezvous_(rendezvous), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (IsHostKey(key)) return;
    rendezvous_.Publish(std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    if (IsHostKey(key)) return {key.begin(), key.end()};
    absl::StatusOr<std::string> address = rendezvous_.AddressOf(std::stoi(key), deadline_);
    if (!address.ok()) {
      failed_ = address.status();
      throw gloo::IoException(std::string(address.status().message()));
    }
    return {address->begin(), address->end()};
  }
  // get() waits.
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

  const absl::Status& failed() const { return failed_; }

 private:
  // Gloo also asks for host names ("rank_3"), to number the members of a host. TCP has no use for
  // the numbers, so each member counts as a host.
  static bool IsHostKey(const std::string& key) { return key.rfind("rank_", 0) == 0; }

  Rendezvous& rendezvous_;
  const absl::Time deadline_;
  absl::Status failed_;
};

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(std::shared_ptr<gloo::rendezvous::Context> context,
                   std::vector<std::string> members)
      : context_(std::move(context)), members_(std::move(members)) {}
  ~GlooCommunicator() override {
    if (context_ != nullptr) context_->closeConnections();
  }

  absl::Status Broadcast(int root, absl::Span<std::byte> data, absl::Time deadline) override {
    if (members_.size() == 1 || data.empty()) return aborted();
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    absl::Status status = Guarded(
        deadline, [&] { buffer = context_->createUnboundBuffer(data.data(), data.size()); });
    if (status.ok()) status = Begin(buffer.get());
    if (!status.ok()) return status;
    status = Guarded(deadline, [&] { Run(root, *buffer, data.size(), deadline); });
    End();
    const absl::Status why = aborted();
    // Nothing may be written to the caller's memory after this; a pair that is closed writes none.
    if (!status.ok() || !why.ok()) context_->closeConnections();
    return why.ok() ? status : why;
  }

  void Abort(const absl::Status& why) override {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) aborted_ = why;
    if (running_ == nullptr) return;
    running_->abortWaitRecv();
    running_->abortWaitSend();
  }

 private:
  absl::Status aborted() const {
    absl::MutexLock lock(&mu_);
    return aborted_;
  }
  absl::Status Begin(gloo::transport::UnboundBuffer* buffer) {
    absl::MutexLock lock(&mu_);
    if (aborted_.ok()) running_ = buffer;
    return aborted_;
  }
  void End() {
    absl::MutexLock lock(&mu_);
    running_ = nullptr;
  }
  // An abort wakes one wait; it must also be seen by one that has not begun.
  void CheckAbort() const {
    if (!aborted().ok()) throw gloo::IoException("aborted");
  }

  // A binomial tree, as gloo::broadcast() has it, but piece by piece and such that an abort ends it
  // at once: there, one that comes between two waits is lost.
  void Run(int root, gloo::transport::UnboundBuffer& buffer, size_t bytes, absl::Time deadline) {
    const int size = context_->size;
    const int position = (context_->rank - root + size) % size;
    int bit = 1;
    while (bit < size && (position & bit) == 0) bit <<= 1;
    const int parent = (position - bit + root + size) % size;
    std::vector<int> children;  // the largest subtree first
    for (int step = bit >> 1; step > 0; step >>= 1) {
      if (position + step < size) children.push_back((position + step + root) % size);
    }
    const size_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
    const auto length = [&](size_t p) { return std::min(kPieceBytes, bytes - p * kPieceBytes); };
    size_t posted = 0;
    for (size_t p = 0; p < pieces; ++p) {
      if (position != 0) {
        for (; posted < std::min(pieces, p + kPostedAhead); ++posted) {
          buffer.recv(parent, kSlot, posted * kPieceBytes, length(posted));
        }
        CheckAbort();
        if (!buffer.waitRecv(nullptr, Remaining(deadline))) CheckAbort();
      }
      for (int child : children) buffer.send(child, kSlot, p * kPieceBytes, length(p));
    }
    for (size_t sent = 0; sent < pieces * children.size(); ++sent) {
      CheckAbort();
      if (!buffer.waitSend(nullptr, Remaining(deadline))) CheckAbort();
    }
  }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::vector<std::string> members_;
  mutable absl::Mutex mu_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  gloo::transport::UnboundBuffer* running_ ABSL_GUARDED_BY(mu_) = nullptr;
};

class GlooCollective final : public Collective {
 public:
  explicit GlooCollective(std::shared_ptr<gloo::transport::Device> device)
      : device_(std::move(device)) {}

  std::string library() const override {
    return absl::StrCat("gloo ", GLOO_VERSION_MAJOR, ".", GLOO_VERSION_MINOR, ".",
                        GLOO_VERSION_PATCH);
  }
  std::string interface() const override { return device_->str(); }

  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const std::vector<std::string>& members,
                                                        int rank, Rendezvous& rendezvous,
                                                        absl::Time deadline) override {
    if (members.size() == 1) return std::make_unique<GlooCommunicator>(nullptr, members);
    auto context =
        std::make_shared<gloo::rendezvous::Context>(rank, static_cast<int>(members.size()));
    RendezvousStore store(rendezvous, deadline);
    const absl::Status status = Guarded(deadline, [&] {
      context->setTimeout(Remaining(deadline));
      std::shared_ptr<gloo::transport::Device> device = device_;
      context->connectFullMesh(store, device);
    });
    if (!store.failed().ok()) return store.failed();
    if (!status.ok()) return Annotate(status, absl::StrCat("connecting by ", device_->str()));
    return std::make_unique<GlooCommunicator>(std::move(context), members);
  }

 private:
  const std::shared_ptr<gloo::transport::Device> device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> MakeGlooCollective(const std::string& host) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = host;
  std::shared_ptr<gloo::transport::Device> device;
  const absl::Status status = Guarded(
      absl::InfiniteFuture(), [&] { device = gloo::transport::tcp::CreateDevice(attributes); });
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("broadcasts cannot use the address ", host));
  }
  return std::make_unique<GlooCollective>(std::move(device));
}

}  // namespace xfer
