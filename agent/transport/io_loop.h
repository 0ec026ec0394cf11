// Epoll-driven threads, each of which serves many sockets.
#ifndef XFER_AGENT_TRANSPORT_IO_LOOP_H_
#define XFER_AGENT_TRANSPORT_IO_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/unique_fd.h"

namespace xfer {

// Reacts to one socket. All calls come from the thread of the loop it was added to.
class IoHandler {
 public:
  virtual ~IoHandler() = default;
  // `events` as epoll_wait gives them (level-triggered).
  virtual void OnEvents(uint32_t events) = 0;
  // Regularly, for time limits; monotonic nanoseconds.
  virtual void OnTick(int64_t now_nanos) = 0;
};

// One thread. Add, Modify, Remove and scratch are for that thread only; the rest is thread-safe.
class IoLoop {
 public:
  // `tick`: how often handlers' OnTick is called.
  static absl::StatusOr<std::unique_ptr<IoLoop>> Start(absl::Duration tick);
  // Ends the thread, then drops the handlers that are left. Not from the loop's own thread.
  ~IoLoop();

  // Calls `task` on the loop's thread, in the order of the calls.
  void Post(std::function<void()> task);
  // Likewise, and returns when it has run; at once when called on the loop's thread.
  void RunSync(const std::function<void()>& task);

  // The loop shares the handler until Remove(). The descriptor stays the caller's.
  absl::Status Add(int fd, uint32_t events, std::shared_ptr<IoHandler> handler);
  void Modify(int fd, uint32_t events);
  void Remove(int fd);
  bool InThread() const { return std::this_thread::get_id() == thread_.get_id(); }
  // Memory for what is used up before the handler returns.
  absl::Span<std::byte> scratch() { return absl::MakeSpan(scratch_); }

 private:
  explicit IoLoop(absl::Duration tick);
  void Run();
  bool RunTasks();
  void Tick(int64_t now);

  const absl::Duration tick_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::vector<std::byte> scratch_;
  absl::flat_hash_map<int, std::shared_ptr<IoHandler>> handlers_;

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool awake_ ABSL_GUARDED_BY(mu_) = false;  // wake_ has been written to and not been read yet
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// Several loops; sockets are dealt out in turn. Thread-safe.
class IoPool {
 public:
  static absl::StatusOr<std::shared_ptr<IoPool>> Start(int threads, absl::Duration tick);
  IoLoop* Next();
  const std::vector<std::unique_ptr<IoLoop>>& loops() const { return loops_; }

 private:
  std::vector<std::unique_ptr<IoLoop>> loops_;
  absl::Mutex mu_;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace xfer

#endif  // XFER_AGENT_TRANSPORT_IO_LOOP_H_
