// Callbacks that are told "something changed".
#ifndef XFER_COORDINATOR_REGISTRY_NOTIFIER_H_
#define XFER_COORDINATOR_REGISTRY_NOTIFIER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace xfer {

// Thread-safe. Callbacks run one at a time on the thread of Notify() and must not call Add() or
// Remove().
class Notifier {
 public:
  using Callback = std::function<void()>;

  uint64_t Add(Callback callback) {
    absl::MutexLock lock(&mu_);
    callbacks_.emplace(next_, std::move(callback));
    return next_++;
  }
  // When it returns, the callback is not running and will not run again.
  void Remove(uint64_t id) {
    absl::MutexLock lock(&mu_);
    callbacks_.erase(id);
  }
  void Notify() {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, callback] : callbacks_) callback();
  }

 private:
  absl::Mutex mu_;
  std::map<uint64_t, Callback> callbacks_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_REGISTRY_NOTIFIER_H_
