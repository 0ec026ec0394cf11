#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/socket.h"
#include "agent/transport/tcp_sender.h"
#include "common/base/status.h"

namespace xfer {
namespace {

// sendmsg takes at most 1024 (IOV_MAX).
constexpr size_t kMaxIovecs = 1024;
// What is offered to one sendmsg.
constexpr uint64_t kSendBytes = 1 << 20;
// After so many bytes the loop's other sockets have their turn.
constexpr uint64_t kTurnBytes = 4 << 20;

}  // namespace

absl::Status SendStream::Open() {
  absl::Status status;
  loop_->RunSync([&] { status = loop_->Add(fd_.get(), EPOLLIN, shared_from_this()); });
  return status;
}

void SendStream::Kick() {
  loop_->Post([self = shared_from_this()] { self->Pump(); });
}

void SendStream::Close(bool wait) {
  auto close = [self = shared_from_this()] { self->CloseNow(); };
  if (wait) {
    loop_->RunSync(close);
  } else {
    loop_->Post(close);
  }
}

void SendStream::CloseNow() {
  if (!fd_.valid()) return;
  loop_->Remove(fd_.get());
  fd_.reset();
  batch_.clear();
  session_.reset();
}

void SendStream::Fail(const absl::Status& status) {
  session_->Fail(status);
  CloseNow();
}

void SendStream::OnEvents(uint32_t events) {
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) ReadAnswers();
  if (fd_.valid() && (events & EPOLLOUT)) Pump();
}

void SendStream::OnTick(int64_t now_nanos) {
  if (const std::shared_ptr<SendSession> session = session_) session->CheckStall(now_nanos);
}

void SendStream::WantWrite(bool on) {
  if (std::exchange(want_write_, on) != on)
    loop_->Modify(fd_.get(), on ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

uint64_t SendStream::Gather() {
  iovecs_.clear();
  const absl::Span<std::byte> scratch = loop_->scratch();
  uint64_t packed = 0;  // bytes of the scratch in use
  uint64_t total = 0;
  uint64_t skip = front_written_;
  for (size_t i = front_; i < batch_.size(); ++i, skip = 0) {
    SendChunk& chunk = batch_[i];
    if (skip < chunk.header.size()) {
      if (iovecs_.size() + 1 >= kMaxIovecs) return total;
      iovecs_.push_back({chunk.header.data() + skip, chunk.header.size() - skip});
      total += chunk.header.size() - skip;
      skip = 0;
    } else {
      skip -= chunk.header.size();
    }
    if (chunk.posted == nullptr) continue;
    const Transfer& transfer = *chunk.posted->range.transfer;
    std::byte* source = chunk.posted->range.source.base;
    const uint64_t begin = chunk.begin + skip;
    if (begin == chunk.begin) chunk.pack = RunsAreShort(transfer, Side::kSource, begin, chunk.end);
    if (iovecs_.size() >= kMaxIovecs) return total;
    if (chunk.pack) {
      const uint64_t end = std::min(chunk.end, begin + (scratch.size() - packed));
      if (end == begin) return total;
      PackRuns(transfer, source, begin, end, scratch.data() + packed);
      iovecs_.push_back({scratch.data() + packed, end - begin});
      packed += end - begin;
      total += end - begin;
      if (end < chunk.end) return total;
      continue;
    }
    const uint64_t end = std::min(chunk.end, begin + kSendBytes);
    const uint64_t reached =
        GatherRuns(transfer, Side::kSource, source, begin, end, kMaxIovecs, iovecs_);
    total += reached - begin;
    if (reached < chunk.end || total >= kSendBytes) return total;
  }
  return total;
}

void SendStream::Advance(uint64_t bytes) {
  size_t whole = front_;
  front_written_ += bytes;
  while (whole < batch_.size() && front_written_ >= batch_[whole].bytes()) {
    front_written_ -= batch_[whole].bytes();
    ++whole;
  }
  if (whole < batch_.size()) {
    front_ = whole;
    return;
  }
  session_->Written(batch_, batch_.size());
  batch_.clear();
  front_ = 0;
}

void SendStream::Pump() {
  if (!fd_.valid()) return;
  if (std::exchange(blocked_, false)) session_->Unblocked();
  uint64_t sent = 0;
  while (true) {
    if (batch_.empty() && !session_->Take(this, batch_)) {
      WantWrite(false);
      return;
    }
    if (sent >= kTurnBytes) {
      WantWrite(true);
      return;
    }
    Gather();
    msghdr message = {};
    message.msg_iov = iovecs_.data();
    message.msg_iovlen = iovecs_.size();
    const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Fail(ErrnoStatus(errno, "send"));
      WantWrite(true);
      blocked_ = true;
      session_->Blocked();
      return;
    }
    session_->Progress();
    sent += static_cast<uint64_t>(n);
    Advance(static_cast<uint64_t>(n));
  }
}

void SendStream::ReadAnswers() {
  while (true) {
    const absl::Span<std::byte> scratch = loop_->scratch();
    const ssize_t n = recv(fd_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return Fail(ErrnoStatus(errno, "recv"));
    if (n == 0) return Fail(absl::UnavailableError("recv: the peer closed the connection"));
    answers_.append(reinterpret_cast<const char*>(scratch.data()), static_cast<size_t>(n));
    session_->Progress();
    if (absl::Status status = ParseAnswers(); !status.ok()) return Fail(status);
    if (static_cast<size_t>(n) < scratch.size()) return;
  }
}

absl::Status SendStream::ParseAnswers() {
  size_t at = 0;
  while (answers_.size() - at >= wire::kFrameBytes) {
    const auto* bytes = reinterpret_cast<const std::byte*>(answers_.data()) + at;
    XFER_ASSIGN_OR_RETURN(const wire::Frame frame,
                          wire::DecodeFrame(absl::MakeSpan(bytes, wire::kFrameBytes)));
    if (frame.type != wire::FrameType::kAnswer) {
      return absl::InvalidArgumentError("the peer sent a frame that is not an answer");
    }
    if (answers_.size() - at < wire::kFrameBytes + frame.message_bytes()) break;
    const absl::string_view message(answers_.data() + at + wire::kFrameBytes,
                                    frame.message_bytes());
    XFER_RETURN_IF_ERROR(session_->Answered(frame.sync.sync_id, frame.transfer,
                                            absl::Status(frame.code(), wire::Printable(message))));
    at += wire::kFrameBytes + frame.message_bytes();
  }
  answers_.erase(0, at);
  return absl::OkStatus();
}

}  // namespace xfer
