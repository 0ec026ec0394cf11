// A stream of states: the present one at once, then one after every change, joined while one is
// written.
#ifndef XFER_COORDINATOR_SERVICE_WATCH_H_
#define XFER_COORDINATOR_SERVICE_WATCH_H_

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/status.h"
#include "coordinator/registry/notifier.h"

namespace xfer {

// Uses no thread of its own. Deletes itself when the stream is done. gRPC is never called with the
// lock held.
template <class T>
class Watch final : public grpc::ServerWriteReactor<T> {
 public:
  struct Source {
    // Registers for changes and returns how to undo that.
    std::function<std::function<void()>(Notifier::Callback)> subscribe;
    std::function<absl::StatusOr<std::shared_ptr<const T>>()> read;
    std::function<bool(const T&)> is_last;
  };

  static Watch* Start(Source source) {
    auto* watch = new Watch(std::move(source));
    watch->unsubscribe_ = watch->source_.subscribe([watch] { watch->Changed(); });
    watch->Changed();
    return watch;
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mu_);
      if (!ok) ended_ = true;
    }
    Next(/*written=*/true);
  }
  void OnCancel() override {
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
    }
    Next(/*written=*/false);
  }
  void OnDone() override {
    unsubscribe_();
    delete this;
  }

 private:
  explicit Watch(Source source) : source_(std::move(source)) {}

  void Changed() {
    {
      absl::MutexLock lock(&mu_);
      changed_ = true;
    }
    Next(/*written=*/false);
  }

  // Writes, finishes, or does nothing for the time being.
  void Next(bool written) {
    bool finish = false;
    {
      absl::MutexLock lock(&mu_);
      if (written) busy_ = false;
      if (busy_ || finished_ || !(changed_ || ended_)) return;
      changed_ = false;
      finish = finished_ = ended_;
      busy_ = !ended_;
    }
    if (finish) {
      this->Finish(grpc::Status::OK);
      return;
    }
    absl::StatusOr<std::shared_ptr<const T>> state = source_.read();
    if (!state.ok()) {
      {
        absl::MutexLock lock(&mu_);
        finished_ = true;
      }
      this->Finish(ToGrpc(state.status()));
      return;
    }
    current_ = *std::move(state);
    if (source_.is_last(*current_)) {
      absl::MutexLock lock(&mu_);
      ended_ = true;
    }
    this->StartWrite(current_.get());
  }

  const Source source_;
  std::function<void()> unsubscribe_;  // set before the reactor is handed to gRPC

  absl::Mutex mu_;
  bool changed_ ABSL_GUARDED_BY(mu_) = false;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // a state is being read or written
  bool ended_ ABSL_GUARDED_BY(mu_) =
      false;  // the last state is being written, or the caller has gone
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish() is being called
  std::shared_ptr<const T> current_;            // belongs to whoever set busy_
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_SERVICE_WATCH_H_
