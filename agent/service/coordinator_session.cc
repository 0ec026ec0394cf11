#include "agent/service/coordinator_session.h"

#include <grpcpp/channel.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"

namespace xfer {
namespace {

constexpr absl::Duration kConnectSlice = absl::Milliseconds(200);
constexpr absl::Duration kGoodbyeTime = absl::Milliseconds(500);
constexpr absl::Duration kPublishTimeout = absl::Seconds(30);
// A new session begins with a few quick exchanges, so that the first sync has a good offset.
constexpr int kBurst = 4;
constexpr absl::Duration kBurstInterval = absl::Milliseconds(20);
constexpr absl::Duration kPublishPause = absl::Seconds(1);

}  // namespace

CoordinatorSession::CoordinatorSession(const SessionOptions& options)
    : options_(options),
      channel_(MakeChannel(options.coordinator)),
      hub_(v1::AgentHub::NewStub(channel_)),
      calls_(options.coordinator, options.hello.node(), options.hello.incarnation(), channel_) {}

CoordinatorSession::~CoordinatorSession() { Stop("the agent ends"); }

void CoordinatorSession::Start(SessionHandler* handler) {
  handler_ = handler;
  runner_ = std::thread(&CoordinatorSession::Run, this);
  writer_ = std::thread(&CoordinatorSession::WriteLoop, this);
  publisher_ = std::thread(&CoordinatorSession::PublishLoop, this);
}

void CoordinatorSession::Stop(const std::string& reason) {
  if (!runner_.joinable()) return;
  std::shared_ptr<Stream> stream;
  {
    absl::MutexLock lock(&mu_);
    if (welcomed_) {
      queue_.emplace_back().mutable_goodbye()->set_reason(reason);
      changed_.SignalAll();
      const absl::Time limit = absl::Now() + kGoodbyeTime;
      while (welcomed_ && (!queue_.empty() || writing_)) {
        if (changed_.WaitWithDeadline(&mu_, limit)) break;
      }
    }
    stopping_ = true;
    stream = stream_;
    changed_.SignalAll();
  }
  if (stream != nullptr) stream->context.TryCancel();
  calls_.CancelAll();
  runner_.join();
  writer_.join();
  publisher_.join();
}

bool CoordinatorSession::connected() const {
  absl::MutexLock lock(&mu_);
  return welcomed_;
}

absl::Status CoordinatorSession::WaitConnected(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  while (!welcomed_ && !stopping_) {
    if (changed_.WaitWithDeadline(&mu_, deadline) && !welcomed_) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the agent of node ", options_.hello.node(), " has no connection to the coordinator at ",
          options_.coordinator, ": is it running there?"));
    }
  }
  if (stopping_) return absl::CancelledError("the agent stops");
  return absl::OkStatus();
}

void CoordinatorSession::Send(v1::AgentEvent event) {
  absl::MutexLock lock(&mu_);
  const bool of_session = event.has_step_result() || event.has_progress();
  if (of_session && !welcomed_) return;
  queue_.push_back(std::move(event));
  changed_.SignalAll();
}

// --- the stream

void CoordinatorSession::Run() {
  absl::Duration backoff = options_.first_backoff;
  while (Connect()) {
    const absl::Time start = absl::Now();
    const absl::Status status = RunStream();
    Broken(status);
    if (absl::Now() - start > options_.max_backoff) backoff = options_.first_backoff;
    absl::MutexLock lock(&mu_);
    const absl::Time limit = absl::Now() + backoff;
    while (!stopping_ && !changed_.WaitWithDeadline(&mu_, limit)) {
    }
    backoff = std::min(backoff * 2, options_.max_backoff);
  }
}

// False where the session is to end.
bool CoordinatorSession::Connect() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return false;
    }
    CheckLost();
    if (channel_->WaitForConnected(absl::ToChronoTime(absl::Now() + kConnectSlice))) return true;
    if (!outage_told_) {
      outage_told_ = true;
      spdlog::warn("no coordinator at {}; it is tried again until it answers",
                   options_.coordinator);
    }
  }
}

void CoordinatorSession::CheckLost() {
  absl::Duration lease;
  {
    absl::MutexLock lock(&mu_);
    lease = lease_;
  }
  if (absl::Now() - broken_since_ < lease) return;
  broken_since_ = absl::InfiniteFuture();
  handler_->OnLost(
      absl::UnavailableError(absl::StrCat("the coordinator at ", options_.coordinator,
                                          " has been lost for ", absl::FormatDuration(lease))));
}

absl::Status CoordinatorSession::RunStream() {
  auto stream = std::make_shared<Stream>();
  stream->rpc = hub_->Session(&stream->context);
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) stream->context.TryCancel();
    stream_ = stream;
  }
  v1::AgentEvent hello;
  *hello.mutable_hello() = options_.hello;
  Write(*stream, hello);  // if it fails, so does the read, and the end says why
  v1::AgentCommand command;
  while (stream->rpc->Read(&command)) {
    Handle(std::move(command));
    command.Clear();
  }
  {
    absl::MutexLock lock(&mu_);
    stream_.reset();
    welcomed_ = false;
    queue_.erase(std::remove_if(queue_.begin(), queue_.end(),
                                [](const v1::AgentEvent& event) {
                                  return event.has_step_result() || event.has_progress();
                                }),
                 queue_.end());
    changed_.SignalAll();
  }
  absl::MutexLock lock(&stream->write_mu);
  return FromGrpc(stream->rpc->Finish());
}

void CoordinatorSession::Handle(v1::AgentCommand command) {
  if (command.has_heartbeat_ack()) {
    const v1::HeartbeatAck& ack = command.heartbeat_ack();
    offset_.Add(ack.agent_send_ns(), ack.coordinator_receive_ns(), ack.coordinator_send_ns(),
                options_.clock->MonotonicNanos());
    return;
  }
  if (command.has_welcome()) {
    spdlog::info("joined the coordinator at {} as node {}", options_.coordinator,
                 options_.hello.node());
    outage_told_ = false;
    broken_since_ = absl::InfiniteFuture();
    offset_.Reset();
    absl::MutexLock lock(&mu_);
    const v1::Welcome& welcome = command.welcome();
    if (welcome.lease_ms() > 0) lease_ = absl::Milliseconds(welcome.lease_ms());
    if (welcome.heartbeat_ms() > 0) heartbeat_ = absl::Milliseconds(welcome.heartbeat_ms());
    next_heartbeat_ = absl::InfinitePast();
    burst_ = kBurst;
    welcomed_ = true;
    publish_ = true;
    changed_.SignalAll();
    return;
  }
  if (command.has_reregister()) {
    absl::MutexLock lock(&mu_);
    publish_ = true;
    changed_.SignalAll();
    return;
  }
  handler_->OnCommand(std::move(command));
}

void CoordinatorSession::Broken(const absl::Status& reason) {
  const absl::Status named = absl::UnavailableError(absl::StrCat(
      "the session with the coordinator at ", options_.coordinator, " ended: ", reason.ToString()));
  bool stopping;
  {
    absl::MutexLock lock(&mu_);
    stopping = stopping_;
  }
  if (!stopping) spdlog::warn("{}", std::string(named.message()));
  if (broken_since_ == absl::InfiniteFuture()) {
    broken_since_ = absl::Now();
    handler_->OnSessionBroken(named);
  }
}

// --- writing

bool CoordinatorSession::Write(Stream& stream, const v1::AgentEvent& event) {
  absl::MutexLock lock(&stream.write_mu);
  return stream.rpc->Write(event);
}

v1::AgentEvent CoordinatorSession::MakeHeartbeat() const {
  v1::AgentEvent event;
  v1::Heartbeat* heartbeat = event.mutable_heartbeat();
  heartbeat->set_clock_offset_ns(offset_.offset_ns());
  heartbeat->set_round_trip_ns(offset_.round_trip_ns());
  heartbeat->set_agent_send_ns(options_.clock->MonotonicNanos());
  return event;
}

void CoordinatorSession::WriteLoop() {
  mu_.Lock();
  while (!stopping_) {
    const bool beat = welcomed_ && absl::Now() >= next_heartbeat_;
    if (!beat && (!welcomed_ || queue_.empty())) {
      changed_.WaitWithDeadline(&mu_, welcomed_ ? next_heartbeat_ : absl::InfiniteFuture());
      continue;
    }
    const std::shared_ptr<Stream> stream = stream_;
    v1::AgentEvent event;
    if (beat) {
      next_heartbeat_ =
          absl::Now() + (burst_ > 0 ? std::min(kBurstInterval, heartbeat_) : heartbeat_);
      burst_ = std::max(burst_ - 1, 0);
    } else {
      event = std::move(queue_.front());
      queue_.pop_front();
    }
    writing_ = true;
    mu_.Unlock();
    const bool written = Write(*stream, beat ? MakeHeartbeat() : event);
    if (!written) stream->context.TryCancel();  // the reader sees the end and connects again
    mu_.Lock();
    writing_ = false;
    // What concerns ranks must reach the next session.
    if (!written && (event.has_rank_gone() || event.has_rank_report())) {
      queue_.push_front(std::move(event));
    }
    if (!written && stream_ == stream) welcomed_ = false;
    changed_.SignalAll();
  }
  mu_.Unlock();
}

// --- manifests

void CoordinatorSession::PublishLoop() {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    if (!publish_ || !welcomed_) {
      changed_.Wait(&mu_);
      continue;
    }
    publish_ = false;
    mu_.Unlock();
    const bool all = PublishAll();
    mu_.Lock();
    if (all) continue;
    const absl::Time limit = absl::Now() + kPublishPause;
    while (!stopping_ && !publish_ && !changed_.WaitWithDeadline(&mu_, limit)) {
    }
    publish_ = true;
  }
}

bool CoordinatorSession::PublishAll() {
  bool all = true;
  for (const RankPin& rank : handler_->RanksToPublish()) {
    if (rank->gone()) continue;
    const absl::StatusOr<uint64_t> generation =
        calls_.Publish(*rank, absl::Now() + kPublishTimeout);
    if (generation.ok()) continue;
    all = false;
    spdlog::warn("{} of job {} could not be published: {}", rank->info().id.ToString(),
                 rank->info().job, generation.status().ToString());
  }
  return all;
}

}  // namespace xfer
