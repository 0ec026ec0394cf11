#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/socket.h"
#include "agent/transport/tcp_receiver.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace xfer {
namespace {

constexpr size_t kMaxIovecs = 1024;  // IOV_MAX
// A payload (or what is left of it) up to this long is read together with what follows it.
constexpr uint64_t kSmallPayload = 16 * 1024;
constexpr size_t kReadAhead = 64 * 1024;
// After so many bytes the loop's other sockets have their turn.
constexpr uint64_t kTurnBytes = 4 << 20;
// A peer that lets more answers than this pile up is not read from until it takes some.
constexpr size_t kMaxUnsentAnswers = 1 << 20;
// From accepting a connection to its whole hello.
constexpr absl::Duration kHelloTimeout = absl::Seconds(10);

}  // namespace

ReceiveStream::ReceiveStream(UniqueFd fd, std::string address, IoLoop* loop, TcpReceiver* receiver)
    : fd_(std::move(fd)),
      address_(std::move(address)),
      loop_(loop),
      receiver_(receiver),
      opened_nanos_(Clock::Real()->MonotonicNanos()),
      read_nanos_(opened_nanos_),
      written_nanos_(opened_nanos_) {}

void ReceiveStream::Open() {
  events_ = EPOLLIN;
  if (absl::Status status = loop_->Add(fd_.get(), events_, shared_from_this()); !status.ok()) {
    CloseNow(status);
  }
}

void ReceiveStream::Close(absl::string_view reason, bool wait) {
  auto close = [self = shared_from_this(), text = std::string(reason)] {
    self->CloseNow(absl::CancelledError(text));
  };
  if (wait) {
    loop_->RunSync(close);
  } else {
    loop_->Post(close);
  }
}

void ReceiveStream::CloseNow(const absl::Status& reason) {
  if (!fd_.valid()) return;
  loop_->Remove(fd_.get());
  fd_.reset();
  const std::string who =
      session_ == nullptr ? address_ : absl::StrCat(session_->peer(), " ", address_);
  const std::string why(reason.message());
  if (absl::IsCancelled(reason)) {
    spdlog::debug("tcp: connection from {} closed: {}", who, why);
  } else {
    spdlog::warn("tcp: connection from {} closed: {}", who, why);
  }
  if (std::exchange(in_payload_, false) && entered_) {
    receiver_->options().table->Leave(frame_.sync, frame_.transfer);
  }
  if (session_ != nullptr) session_->End(absl::StrCat("its connection ", address_, " closed"));
  receiver_->Closed(this);
}

void ReceiveStream::UpdateEvents() {
  uint32_t events = 0;
  if (out_.size() < kMaxUnsentAnswers) events |= EPOLLIN;
  if (!out_.empty()) events |= EPOLLOUT;
  if (events != events_) loop_->Modify(fd_.get(), events_ = events);
}

void ReceiveStream::OnEvents(uint32_t events) {
  absl::Status status;
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
    reading_ = true;
    status = Read();
    reading_ = false;
  }
  if (status.ok() && fd_.valid()) status = Flush();
  if (!status.ok()) return CloseNow(status);
  if (fd_.valid()) UpdateEvents();
}

void ReceiveStream::OnTick(int64_t now_nanos) {
  const absl::Duration stall = receiver_->options().stall_timeout;
  const absl::Duration unread = absl::Nanoseconds(now_nanos - read_nanos_);
  if (!fd_.valid()) return;
  if (session_ == nullptr) {
    if (absl::Nanoseconds(now_nanos - opened_nanos_) > std::min(stall, kHelloTimeout)) {
      CloseNow(absl::DeadlineExceededError("no hello came in time"));
    }
  } else if ((InPayload() || !head_.empty()) && unread > stall) {
    CloseNow(absl::DeadlineExceededError(
        absl::StrCat("nothing came for ", absl::FormatDuration(stall), " within a frame")));
  } else if (!out_.empty() && absl::Nanoseconds(now_nanos - written_nanos_) > stall) {
    CloseNow(absl::DeadlineExceededError(
        absl::StrCat("answers were not taken for ", absl::FormatDuration(stall))));
  } else if (absl::Nanoseconds(session_->HeldFor(now_nanos)) > stall) {
    CloseNow(absl::DeadlineExceededError(
        absl::StrCat("a finish waited for bytes and none came for ", absl::FormatDuration(stall))));
  }
}

void ReceiveStream::Answer(std::string bytes) {
  if (!loop_->InThread()) {
    loop_->Post([self = shared_from_this(), bytes = std::move(bytes)] { self->Answer(bytes); });
    return;
  }
  if (!fd_.valid()) return;
  if (out_.empty()) written_nanos_ = Clock::Real()->MonotonicNanos();
  out_ += bytes;
  if (reading_) return;
  if (absl::Status status = Flush(); !status.ok()) return CloseNow(status);
  UpdateEvents();
}

absl::Status ReceiveStream::Flush() {
  size_t written = 0;
  while (written < out_.size()) {
    const ssize_t n =
        send(fd_.get(), out_.data() + written, out_.size() - written, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return ErrnoStatus(errno, "send");
    written += static_cast<size_t>(n);
    written_nanos_ = Clock::Real()->MonotonicNanos();
  }
  out_.erase(0, written);
  return absl::OkStatus();
}

absl::Status ReceiveStream::Read() {
  uint64_t total = 0;
  while (total < kTurnBytes && out_.size() < kMaxUnsentAnswers) {
    uint64_t bytes = 0;
    XFER_ASSIGN_OR_RETURN(const bool more, ReadOnce(bytes));
    total += bytes;
    if (!more) return absl::OkStatus();
  }
  return absl::OkStatus();
}

// One system call: the payload's next bytes straight to where they belong, and what follows them to
// the scratch; or all to the scratch, where a payload is small or scattered.
absl::StatusOr<bool> ReceiveStream::ReadOnce(uint64_t& bytes) {
  const absl::Span<std::byte> scratch = loop_->scratch();
  const uint64_t left = InPayload() ? frame_.end() - at_ : 0;
  const bool direct = left > kSmallPayload && entered_ && !scatter_;
  iovecs_.clear();
  uint64_t placed = 0;
  size_t behind = scratch.size();
  if (direct) {
    // Up to the end of the block, so that whole blocks are reported while they are in the cache.
    const uint64_t end = std::min(frame_.end(), (at_ / kBlockBytes + 1) * kBlockBytes);
    placed = GatherRuns(*target_.transfer, Side::kDestination, target_.memory.base, at_, end,
                        kMaxIovecs - 1, iovecs_) -
             at_;
    behind = placed == left ? wire::kFrameBytes : 0;
  } else if (left == 0 && bulk_) {
    behind = wire::kFrameBytes - std::min(head_.size(), wire::kFrameBytes - 1);
  } else if (left == 0) {
    behind = kReadAhead;
  }
  if (behind > 0) iovecs_.push_back({scratch.data(), behind});
  const uint64_t wanted = placed + behind;
  msghdr message = {};
  message.msg_iov = iovecs_.data();
  message.msg_iovlen = iovecs_.size();
  const ssize_t n = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (n < 0) return ErrnoStatus(errno, "recv");
  if (n == 0) {
    if (InPayload() || !head_.empty()) {
      return absl::UnavailableError("the peer closed it within a frame");
    }
    return absl::CancelledError("the peer closed it");
  }
  bytes = static_cast<uint64_t>(n);
  read_nanos_ = Clock::Real()->MonotonicNanos();
  if (session_ != nullptr) session_->Progress();
  const uint64_t direct_bytes = std::min(bytes, placed);
  if (direct_bytes > 0) Arrived(direct_bytes);
  XFER_RETURN_IF_ERROR(Consume(scratch.subspan(0, bytes - direct_bytes)));
  return bytes == wanted || direct;
}

void ReceiveStream::Arrived(uint64_t bytes) {
  at_ += bytes;
  const bool last = at_ == frame_.end();
  if (entered_) {
    // Blocks end at multiples of kBlockBytes, hence of the digest's leaves.
    const uint64_t upto = last ? at_ : at_ / kBlockBytes * kBlockBytes;
    if (upto > reported_) {
      receiver_->options().table->Arrived(frame_.sync, frame_.transfer, reported_, upto);
      reported_ = upto;
    }
  }
  if (!last) return;
  in_payload_ = false;
  session_->EndRange(frame_, entered_);
}

absl::Status ReceiveStream::Consume(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (InPayload()) {
      // In blocks here too, as Arrived() expects.
      const uint64_t block = std::min(frame_.end(), (at_ / kBlockBytes + 1) * kBlockBytes);
      const uint64_t n = std::min<uint64_t>(bytes.size(), block - at_);
      if (entered_) UnpackRuns(*target_.transfer, target_.memory.base, at_, at_ + n, bytes.data());
      Arrived(n);
      bytes.remove_prefix(n);
      continue;
    }
    // Byte by byte only in name: a head is as long as its fixed part, or as that says.
    size_t whole = session_ == nullptr ? wire::kHelloBytes : wire::kFrameBytes;
    if (session_ == nullptr && head_.size() >= wire::kHelloBytes) {
      XFER_ASSIGN_OR_RETURN(
          whole, wire::HelloBytes(absl::MakeSpan(reinterpret_cast<const std::byte*>(head_.data()),
                                                 head_.size())));
    }
    const size_t n = std::min(bytes.size(), whole - std::min(whole, head_.size()));
    head_.append(reinterpret_cast<const char*>(bytes.data()), n);
    bytes.remove_prefix(n);
    if (head_.size() < whole) continue;
    XFER_RETURN_IF_ERROR(session_ == nullptr ? ConsumeHello() : StartFrame());
  }
  return absl::OkStatus();
}

absl::Status ReceiveStream::ConsumeHello() {
  const auto head = absl::MakeSpan(reinterpret_cast<const std::byte*>(head_.data()), head_.size());
  XFER_ASSIGN_OR_RETURN(const size_t whole, wire::HelloBytes(head));
  if (head_.size() < whole) return absl::OkStatus();
  XFER_ASSIGN_OR_RETURN(const wire::Hello hello, wire::DecodeHello(head));
  head_.clear();
  absl::StatusOr<std::shared_ptr<ReceiveSession>> session = receiver_->Greet(hello, address_);
  wire::HelloAnswer answer;
  answer.status = session.status();
  answer.incarnation = receiver_->options().incarnation;
  out_ += wire::EncodeHelloAnswer(answer);
  XFER_RETURN_IF_ERROR(Flush());
  if (!session.ok()) return Annotate(session.status(), "refused");
  session_ = *std::move(session);
  session_->AddStream(shared_from_this());
  return absl::OkStatus();
}

absl::Status ReceiveStream::StartFrame() {
  XFER_ASSIGN_OR_RETURN(
      frame_, wire::DecodeFrame(
                  absl::MakeSpan(reinterpret_cast<const std::byte*>(head_.data()), head_.size())));
  head_.clear();
  if (frame_.type == wire::FrameType::kFinish) return session_->Finish(frame_, shared_from_this());
  if (frame_.type != wire::FrameType::kRange) {
    return absl::InvalidArgumentError("a sender has no business to send answers");
  }
  absl::StatusOr<ReceiveTable::Target> target = absl::UnknownError("");
  XFER_RETURN_IF_ERROR(session_->BeginRange(frame_, target));
  in_payload_ = true;
  entered_ = target.ok();
  if (entered_) target_ = *target;
  at_ = reported_ = frame_.begin();
  bulk_ = frame_.end() - frame_.begin() > kReadAhead;
  scatter_ = entered_ && RunsAreShort(*target_.transfer, Side::kDestination, at_, frame_.end());
  return absl::OkStatus();
}

}  // namespace xfer
