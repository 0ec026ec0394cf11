// Joins bursts of changes to jobs into a few notices a second.
#ifndef XFER_COORDINATOR_REGISTRY_CHANGE_FEED_H_
#define XFER_COORDINATOR_REGISTRY_CHANGE_FEED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/registry/notifier.h"

namespace xfer {

// The first change after a quiet time is told at once, later ones at least `interval` apart: when
// hundreds of ranks register within a second, every watcher would otherwise get the whole job
// hundreds of times. Thread-safe; owns one thread.
class ChangeFeed {
 public:
  explicit ChangeFeed(absl::Duration interval);
  ~ChangeFeed();

  // `callback` runs on the feed's thread, with the limits of Notifier. Returns the id for Remove().
  uint64_t Add(const std::string& key, Notifier::Callback callback) ABSL_LOCKS_EXCLUDED(mu_);
  // When it returns, the callback is not running and will not run again.
  void Remove(const std::string& key, uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Never blocks on callbacks.
  void MarkChanged(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Channel {
    Notifier notifier;
    int watchers = 0;
  };
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const absl::Duration interval_;
  absl::Mutex mu_;
  absl::CondVar wake_;  // something changed, or stop
  std::map<std::string, std::shared_ptr<Channel>> channels_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> changed_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_REGISTRY_CHANGE_FEED_H_
