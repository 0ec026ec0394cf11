#include "xferctl/run/supervisor.h"

#include <sys/eventfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// One death brings others: a rank ends when its agent does, and may be seen first. Who was started
// first is the cause.
constexpr absl::Duration kBlameDelay = absl::Milliseconds(100);
constexpr absl::Duration kAfterKill = absl::Seconds(10);
constexpr size_t kTailBytes = 8'192;
constexpr size_t kTailLines = 8;

std::vector<std::string> LastLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  if (size <= 0) return {};
  const std::streamoff begin =
      std::max<std::streamoff>(0, size - static_cast<std::streamoff>(kTailBytes));
  std::string text(size - begin, '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(std::max<std::streamsize>(file.gcount(), 0));
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  return lines;
}

}  // namespace

Supervisor::Supervisor(std::string log_directory, CallCanceller& calls)
    : log_directory_(std::move(log_directory)),
      calls_(calls),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      watcher_(&Supervisor::Watch, this) {}

Supervisor::~Supervisor() {
  std::vector<ChildId> all;
  {
    absl::MutexLock lock(&mu_);
    for (ChildId i = 0; i < children_.size(); ++i) all.push_back(i);
  }
  (void)Stop(all, SIGKILL, kAfterKill);  // how a child that is killed ends is no news
  {
    absl::MutexLock lock(&mu_);
    ending_ = true;
  }
  Wake();
  watcher_.join();
}

void Supervisor::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

absl::StatusOr<Supervisor::ChildId> Supervisor::Start(const Program& program) {
  XFER_RETURN_IF_ERROR(Interruption(absl::ZeroDuration()));
  XFER_ASSIGN_OR_RETURN(const std::string path, FindProgram(program.program));
  auto child = std::make_unique<Child>();
  child->name = program.name;
  child->log =
      absl::StrCat(log_directory_, "/", absl::StrReplaceAll(program.name, {{" ", "-"}}), ".log");
  XFER_ASSIGN_OR_RETURN(child->process, Spawn(path, program.args, child->log));
  ChildId id = 0;
  {
    absl::MutexLock lock(&mu_);
    id = children_.size();
    children_.push_back(std::move(child));
  }
  Wake();
  return id;
}

absl::StatusOr<std::vector<std::string>> Supervisor::WaitReady(ChildId id, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const Child& child = *children_[id];
  const auto is_ready = [&child] { return absl::EndsWith(child.ready_line, "\n"); };
  const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return is_ready() || !interruption_.ok();
  };
  const bool in_time = mu_.AwaitWithDeadline(absl::Condition(&settled), deadline);
  if (!interruption_.ok()) return interruption_;
  if (!in_time) {
    return absl::DeadlineExceededError(
        absl::StrCat(child.name, " (pid ", child.process.pid, ") is not ready yet"));
  }
  std::vector<std::string> words =
      absl::StrSplit(child.ready_line, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  if (words.empty() || words.front() != "ready") {
    return absl::InternalError(
        absl::StrCat(child.name, " said \"", absl::StripAsciiWhitespace(child.ready_line),
                     "\" where \"ready\" was expected: is it of another version?"));
  }
  words.erase(words.begin());
  return words;
}

absl::Status Supervisor::Stop(const std::vector<ChildId>& ids, int signal,
                              absl::Duration patience) {
  absl::MutexLock lock(&mu_);
  const auto send = [&](int number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (ChildId id : ids) {
      Child& child = *children_[id];
      if (!child.exited) SendSignal(child.process, number);
    }
  };
  const auto all_ended = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return std::all_of(ids.begin(), ids.end(), [&](ChildId id) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return children_[id]->exited;
    });
  };
  for (ChildId id : ids) {
    if (!children_[id]->exited) children_[id]->stopped = true;
  }
  send(signal);
  absl::Status result;
  const bool was_interrupted = !interruption_.ok();
  const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return all_ended() || (!was_interrupted && !interruption_.ok());
  };
  if (!mu_.AwaitWithTimeout(absl::Condition(&enough), patience) || !all_ended()) {
    send(SIGKILL);
    mu_.AwaitWithTimeout(absl::Condition(&all_ended), kAfterKill);
  }
  for (ChildId id : ids) {
    const Child& child = *children_[id];
    if (!result.ok() || (child.exited && child.exit_code == CLD_EXITED && child.exit_status == 0))
      continue;
    std::string message =
        absl::StrCat(child.name, " (pid ", child.process.pid, ") ",
                     child.exited ? DescribeExit(child.exit_code, child.exit_status)
                                  : std::string("cannot be ended"));
    const std::vector<std::string> lines = LastLines(child.log);
    if (!lines.empty()) absl::StrAppend(&message, ": ", lines.back());
    result = absl::InternalError(message);
  }
  return result;
}

void Supervisor::Interrupt(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (!interruption_.ok()) return;
    interruption_ = reason;
  }
  calls_.Cancel(reason);
}

absl::Status Supervisor::Interruption(absl::Duration patience) const {
  absl::MutexLock lock(&mu_);
  const auto interrupted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !interruption_.ok(); };
  mu_.AwaitWithTimeout(absl::Condition(&interrupted), patience);
  return interruption_;
}

std::vector<std::string> Supervisor::LogTail() const {
  absl::MutexLock lock(&mu_);
  return tail_;
}

void Supervisor::Collect(std::vector<pollfd>& fds, std::vector<Child*>& who) {
  absl::MutexLock lock(&mu_);
  fds.assign(1, {wake_.get(), POLLIN, 0});
  who.assign(1, nullptr);
  for (const auto& child : children_) {
    if (!child->exited) {
      fds.push_back({child->process.pidfd.get(), POLLIN, 0});
      who.push_back(child.get());
    }
    if (!child->ready_closed) {
      fds.push_back({child->process.ready.get(), POLLIN, 0});
      who.push_back(child.get());
    }
  }
}

void Supervisor::ReadReady(Child& child) {
  std::array<char, 512> buffer;
  while (true) {
    const ssize_t got = read(child.process.ready.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0 || child.ready_line.size() > kTailBytes) {
      child.ready_closed = true;
      return;
    }
    child.ready_line.append(buffer.data(), got);
  }
}

void Supervisor::Reap(Child& child) {
  siginfo_t info = {};
  if (waitid(P_PIDFD, child.process.pidfd.get(), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
    return;
  child.exited = true;
  child.exit_code = info.si_code;
  child.exit_status = info.si_status;
  if (!child.stopped && !blaming_) {
    blaming_ = true;
    blame_at_ = absl::Now() + kBlameDelay;
  }
}

const Supervisor::Child* Supervisor::Culprit() const {
  for (const auto& child : children_) {
    if (child->exited && !child->stopped) return child.get();
  }
  return nullptr;
}

void Supervisor::BlameCulprit() {
  absl::Status reason;
  {
    absl::MutexLock lock(&mu_);
    blame_at_ = absl::InfiniteFuture();
    const Child* const child = Culprit();
    if (child == nullptr || !interruption_.ok()) return;
    std::string message = absl::StrCat(child->name, " (pid ", child->process.pid, ") ",
                                       DescribeExit(child->exit_code, child->exit_status));
    const std::vector<std::string> lines = LastLines(child->log);
    // Who is killed does not get to say why.
    if (!lines.empty() && child->exit_code == CLD_EXITED) {
      absl::StrAppend(&message, "; its last line: ", lines.back());
    }
    for (const std::string& line : lines) tail_.push_back(absl::StrCat(child->name, " | ", line));
    reason = absl::InternalError(message);
  }
  Interrupt(reason);
}

void Supervisor::Watch() {
  std::vector<pollfd> fds;
  std::vector<Child*> who;
  while (true) {
    Collect(fds, who);
    int timeout_ms = -1;
    {
      absl::MutexLock lock(&mu_);
      if (ending_) return;
      if (blame_at_ != absl::InfiniteFuture()) {
        timeout_ms = static_cast<int>(
            std::max<int64_t>(0, absl::ToInt64Milliseconds(blame_at_ - absl::Now()) + 1));
      }
    }
    poll(fds.data(), fds.size(),
         timeout_ms);  // an error shows no event, and the next turn tries again
    bool blame = false;
    {
      absl::MutexLock lock(&mu_);
      uint64_t woken = 0;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &woken, sizeof(woken));
      for (size_t i = 1; i < fds.size(); ++i) {
        if (fds[i].revents == 0) continue;
        if (fds[i].fd == who[i]->process.ready.get()) {
          ReadReady(*who[i]);
        } else {
          Reap(*who[i]);
        }
      }
      blame = absl::Now() >= blame_at_;
    }
    if (blame) BlameCulprit();
  }
}

}  // namespace xfer
