#include "coordinator/registry/change_feed.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace xfer {

ChangeFeed::ChangeFeed(absl::Duration interval) : interval_(interval), thread_([this] { Run(); }) {}

ChangeFeed::~ChangeFeed() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    wake_.SignalAll();
  }
  thread_.join();
}

uint64_t ChangeFeed::Add(const std::string& key, Notifier::Callback callback) {
  std::shared_ptr<Channel> channel;
  {
    absl::MutexLock lock(&mu_);
    std::shared_ptr<Channel>& slot = channels_[key];
    if (slot == nullptr) slot = std::make_shared<Channel>();
    ++slot->watchers;
    channel = slot;
  }
  return channel->notifier.Add(std::move(callback));
}

void ChangeFeed::Remove(const std::string& key, uint64_t id) {
  std::shared_ptr<Channel> channel;
  {
    absl::MutexLock lock(&mu_);
    auto it = channels_.find(key);
    if (it == channels_.end()) return;
    channel = it->second;
    if (--channel->watchers == 0) channels_.erase(it);
  }
  channel->notifier.Remove(id);
}

void ChangeFeed::MarkChanged(const std::string& key) {
  absl::MutexLock lock(&mu_);
  if (!channels_.contains(key)) return;
  changed_.insert(key);
  wake_.SignalAll();
}

void ChangeFeed::Run() {
  absl::MutexLock lock(&mu_);
  while (true) {
    while (!stop_ && changed_.empty()) wake_.Wait(&mu_);
    if (stop_) return;
    std::vector<std::shared_ptr<Channel>> channels;
    for (const std::string& key : changed_) {
      auto it = channels_.find(key);
      if (it != channels_.end()) channels.push_back(it->second);
    }
    changed_.clear();
    mu_.Unlock();
    for (const auto& channel : channels) channel->notifier.Notify();
    channels.clear();
    mu_.Lock();
    const absl::Time next = absl::Now() + interval_;
    while (!stop_ && !wake_.WaitWithDeadline(&mu_, next)) {
    }
  }
}

}  // namespace xfer
