#include "agent/service/rank_sessions.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/status.h"

namespace xfer {

// One stream. gRPC calls the On...() functions one at a time each; writes are queued here, since it
// takes one at a time only.
class RankSessions::Stream final : public RankSessions::Reactor,
                                   public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(RankSessions* sessions) : sessions_(sessions) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&event_);
  }

  void SetHooks(const v1::Attach& attach) {
    absl::MutexLock lock(&mu_);
    for (int hook : attach.hooks()) hooks_.push_back(hook);
  }

  // A hook that the rank did not ask for is done at once.
  void CallHook(uint64_t call, const HookOrder& order, std::function<void(absl::Status)> done) {
    absl::Status over;
    {
      absl::MutexLock lock(&mu_);
      const int hook = static_cast<int>(order.hook);
      const bool wanted = std::find(hooks_.begin(), hooks_.end(), hook) != hooks_.end();
      if (finishing_) {
        over = absl::UnavailableError("its session with the agent has ended");
      } else if (wanted) {
        pending_[call] = std::move(done);
        v1::HookCall* message = queue_.emplace_back().mutable_hook_call();
        message->set_call(call);
        message->set_hook(static_cast<v1::Hook>(hook));
        message->set_sync_id(order.sync_id);
        message->set_version(order.version);
        message->set_deadline_ms(
            std::max<int64_t>(absl::ToInt64Milliseconds(order.deadline - absl::Now()), 1));
        *message->mutable_outcome() = ToOutcome(order.outcome);
        WriteNext();
        return;
      }
    }
    done(over);
  }

  // Ends the stream; what was queued is written first.
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (finishing_) return;
    finishing_ = true;
    status_ = status;
    if (!writing_) Finish(ToGrpc(status_));
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Over("the process ended or closed its session");
      return;
    }
    HandleEvent();
    {
      absl::MutexLock lock(&mu_);
      if (finishing_) return;  // then nothing is read any more; OnDone() comes
    }
    StartRead(&event_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) queue_.clear();
    if (!queue_.empty()) {
      WriteNext();
    } else if (finishing_) {
      Finish(ToGrpc(status_));
    }
  }

  void OnDone() override {
    Over("the session was cancelled");
    std::shared_ptr<Stream> self = std::move(self_);  // perhaps the last reference
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || queue_.empty()) return;
    writing_ = true;
    StartWrite(&queue_.front());
  }

  // Nothing comes from the rank any more.
  void Over(const std::string& reason) {
    End(absl::OkStatus());
    absl::flat_hash_map<uint64_t, std::function<void(absl::Status)>> pending;
    {
      absl::MutexLock lock(&mu_);
      pending.swap(pending_);
    }
    const uint64_t registration_id = sessions_->Detach(this);
    for (auto& [call, done] : pending) done(absl::UnavailableError(reason));
    if (registration_id != 0) sessions_->listener_->OnSessionEnd(registration_id, reason);
  }

  void HandleEvent() {
    if (event_.has_attach()) {
      SetHooks(event_.attach());
      const absl::Status status =
          sessions_->Attach(shared_from_this(), event_.attach().registration_id());
      if (!status.ok()) return End(status);
      absl::MutexLock lock(&mu_);
      if (finishing_) return;
      queue_.emplace_back().mutable_attached();
      WriteNext();
      return;
    }
    const uint64_t registration_id = sessions_->RegistrationOf(this);
    if (registration_id == 0) {
      return End(absl::FailedPreconditionError("a rank's session must begin with attach"));
    }
    if (event_.has_hook_done()) {
      std::function<void(absl::Status)> done;
      {
        absl::MutexLock lock(&mu_);
        auto found = pending_.find(event_.hook_done().call());
        if (found == pending_.end()) return;
        done = std::move(found->second);
        pending_.erase(found);
      }
      done(FromOutcome(event_.hook_done().outcome()));
    } else if (event_.has_ready()) {
      sessions_->listener_->OnReady(registration_id, event_.ready().version());
    } else if (event_.has_verdict()) {
      sessions_->listener_->OnVerdict(registration_id, event_.verdict());
    }
  }

  RankSessions* const sessions_;
  std::shared_ptr<Stream> self_;  // until gRPC is done with it
  v1::RankEvent event_;           // being read
  absl::Mutex mu_;
  std::vector<int> hooks_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::function<void(absl::Status)>> pending_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::RankCommand> queue_ ABSL_GUARDED_BY(mu_);  // the front is being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

RankSessions::Reactor* RankSessions::Open() {
  auto stream = std::make_shared<Stream>(this);
  stream->Begin();
  return stream.get();
}

absl::Status RankSessions::Attach(const StreamPtr& stream, uint64_t registration_id) {
  if (absl::Status status = listener_->OnAttach(registration_id); !status.ok()) return status;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, other] : streams_) {
    if (other == stream) {
      return absl::FailedPreconditionError(
          absl::StrCat("the session is attached to registration ", id, " already"));
    }
  }
  if (!streams_.try_emplace(registration_id, stream).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("registration ", registration_id, " has another session"));
  }
  return absl::OkStatus();
}

uint64_t RankSessions::Detach(const Stream* stream) {
  absl::MutexLock lock(&mu_);
  for (auto it = streams_.begin(); it != streams_.end(); ++it) {
    if (it->second.get() != stream) continue;
    const uint64_t registration_id = it->first;
    streams_.erase(it);
    return registration_id;
  }
  return 0;
}

uint64_t RankSessions::RegistrationOf(const Stream* stream) const {
  absl::MutexLock lock(&mu_);
  for (const auto& [id, other] : streams_) {
    if (other.get() == stream) return id;
  }
  return 0;
}

void RankSessions::Call(const HookOrder& order, std::function<void(absl::Status)> done) {
  StreamPtr stream;
  {
    absl::MutexLock lock(&mu_);
    auto found = streams_.find(order.registration_id);
    if (found != streams_.end()) stream = found->second;
  }
  if (stream == nullptr) {
    done(absl::UnavailableError("its process has no session with the agent"));
    return;
  }
  stream->CallHook(next_call_.fetch_add(1), order, std::move(done));
}

bool RankSessions::Attached(uint64_t registration_id) const {
  absl::MutexLock lock(&mu_);
  return streams_.contains(registration_id);
}

void RankSessions::Rebind(uint64_t old_id, uint64_t new_id) {
  absl::MutexLock lock(&mu_);
  auto found = streams_.find(old_id);
  if (found == streams_.end()) return;
  StreamPtr stream = std::move(found->second);
  streams_.erase(found);
  streams_[new_id] = std::move(stream);
}

void RankSessions::Close(uint64_t registration_id, const absl::Status& reason) {
  StreamPtr stream;
  {
    absl::MutexLock lock(&mu_);
    auto found = streams_.find(registration_id);
    if (found == streams_.end()) return;
    stream = std::move(found->second);
    streams_.erase(found);
  }
  stream->End(reason);
}

}  // namespace xfer
