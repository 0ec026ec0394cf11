#include "agent/transport/io_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/synchronization/notification.h"
#include "agent/transport/runs.h"
#include "agent/transport/socket.h"
#include "common/base/clock.h"

namespace xfer {

IoLoop::IoLoop(absl::Duration tick) : tick_(tick), scratch_(kBlockBytes) {}

absl::StatusOr<std::unique_ptr<IoLoop>> IoLoop::Start(absl::Duration tick) {
  auto loop = std::unique_ptr<IoLoop>(new IoLoop(tick));
  loop->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_.valid()) return ErrnoStatus(errno, "epoll_create1");
  loop->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_.valid()) return ErrnoStatus(errno, "eventfd");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = loop->wake_.get();
  if (epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  return loop;
}

IoLoop::~IoLoop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  Post([] {});
  thread_.join();
}

void IoLoop::Post(std::function<void()> task) {
  bool wake = false;
  {
    absl::MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
    wake = !std::exchange(awake_, true);
  }
  if (!wake) return;
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the loop is awake.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

void IoLoop::RunSync(const std::function<void()>& task) {
  if (InThread()) return task();
  absl::Notification done;
  Post([&] {
    task();
    done.Notify();
  });
  // Bounded: handlers never block.
  done.WaitForNotification();
}

absl::Status IoLoop::Add(int fd, uint32_t events, std::shared_ptr<IoHandler> handler) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return ErrnoStatus(errno, "epoll_ctl");
  handlers_[fd] = std::move(handler);
  return absl::OkStatus();
}

void IoLoop::Modify(int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void IoLoop::Remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

bool IoLoop::RunTasks() {
  uint64_t count = 0;
  std::vector<std::function<void()>> tasks;
  bool stop = false;
  {
    absl::MutexLock lock(&mu_);
    // Read before the flag is cleared: a later Post() must find either the flag or an unread
    // counter.
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
    awake_ = false;
    tasks.swap(tasks_);
    stop = stop_;
  }
  for (const auto& task : tasks) task();
  return !stop;
}

void IoLoop::Tick(int64_t now) {
  // A handler may remove itself or others while being called.
  std::vector<std::shared_ptr<IoHandler>> handlers;
  handlers.reserve(handlers_.size());
  for (const auto& [fd, handler] : handlers_) handlers.push_back(handler);
  for (const auto& handler : handlers) handler->OnTick(now);
}

void IoLoop::Run() {
  std::array<epoll_event, 64> events;
  const int64_t tick = absl::ToInt64Nanoseconds(tick_);
  int64_t next_tick = Clock::Real()->MonotonicNanos() + tick;
  bool running = true;
  while (running) {
    const int64_t left = next_tick - Clock::Real()->MonotonicNanos();
    const int millis =
        handlers_.empty() ? -1 : static_cast<int>(std::max<int64_t>(0, left / 1000000 + 1));
    const int n = epoll_wait(epoll_.get(), events.data(), events.size(), left <= 0 ? 0 : millis);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.fd == wake_.get()) {
        running = RunTasks();
        continue;
      }
      // Kept alive here, as the handler may remove itself. It may also have been removed in this
      // round.
      const auto it = handlers_.find(events[i].data.fd);
      if (it == handlers_.end()) continue;
      const std::shared_ptr<IoHandler> handler = it->second;
      handler->OnEvents(events[i].events);
    }
    if (const int64_t now = Clock::Real()->MonotonicNanos(); now >= next_tick) {
      // A loop that was itself held up first reads what has come meanwhile, before it judges its
      // peers.
      if (now < next_tick + tick) Tick(now);
      next_tick = now + tick;
    }
  }
  handlers_.clear();
}

absl::StatusOr<std::shared_ptr<IoPool>> IoPool::Start(int threads, absl::Duration tick) {
  auto pool = std::make_shared<IoPool>();
  for (int i = 0; i < threads; ++i) {
    absl::StatusOr<std::unique_ptr<IoLoop>> loop = IoLoop::Start(tick);
    if (!loop.ok()) return loop.status();
    pool->loops_.push_back(*std::move(loop));
  }
  return pool;
}

IoLoop* IoPool::Next() {
  absl::MutexLock lock(&mu_);
  return loops_[next_++ % loops_.size()].get();
}

}  // namespace xfer
