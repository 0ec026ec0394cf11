#include "agent/transport/verbs/objects.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/transport/socket.h"
#include "common/base/status.h"

namespace xfer::verbs {
namespace {

absl::Status Failed(ibv_context* context, absl::string_view call) {
  const int error = errno;
  return ErrnoStatus(
      error == 0 ? EIO : error,
      absl::StrCat("RDMA device ", ibv_get_device_name(context->device), ": ", call));
}

}  // namespace

absl::StatusOr<ProtectionDomain> ProtectionDomain::Create(const Context& context) {
  ProtectionDomain pd;
  errno = 0;
  pd.pd_.reset(ibv_alloc_pd(context.get()));
  if (pd.pd_ == nullptr) return Failed(context.get(), "ibv_alloc_pd");
  return pd;
}

absl::StatusOr<CompletionChannel> CompletionChannel::Create(const Context& context) {
  CompletionChannel channel;
  errno = 0;
  channel.channel_.reset(ibv_create_comp_channel(context.get()));
  if (channel.channel_ == nullptr) return Failed(context.get(), "ibv_create_comp_channel");
  const int flags = fcntl(channel.fd(), F_GETFL);
  if (flags < 0 || fcntl(channel.fd(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return Failed(context.get(), "fcntl of the completion channel");
  }
  return channel;
}

absl::StatusOr<CompletionQueue> CompletionQueue::Create(const Context& context, int entries,
                                                        const CompletionChannel& channel) {
  CompletionQueue cq;
  errno = 0;
  cq.cq_.reset(ibv_create_cq(context.get(), entries, nullptr, channel.get(), 0));
  if (cq.cq_ == nullptr) {
    return Failed(context.get(),
                  absl::StrCat("ibv_create_cq of ", entries, " entries (the device has at most ",
                               context.attributes().max_cqe, ")"));
  }
  return cq;
}

absl::Status CompletionQueue::PollError() const { return Failed(cq_->context, "ibv_poll_cq"); }

absl::Status CompletionQueue::Arm() const {
  if (const int error = ibv_req_notify_cq(get(), 0); error != 0) {
    errno = error;
    return Failed(cq_->context, "ibv_req_notify_cq");
  }
  return absl::OkStatus();
}

void CompletionQueue::TakeEvents() const {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  unsigned int events = 0;
  while (ibv_get_cq_event(cq_->channel, &cq, &context) == 0) ++events;
  if (events > 0) ibv_ack_cq_events(get(), events);
}

absl::StatusOr<QueuePair> QueuePair::Create(const ProtectionDomain& pd, const CompletionQueue& cq,
                                            const Sizes& sizes) {
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = cq.get();
  attributes.recv_cq = cq.get();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = sizes.send_requests;
  attributes.cap.max_recv_wr = sizes.receive_requests;
  attributes.cap.max_send_sge = sizes.send_sges;
  attributes.cap.max_recv_sge = 1;
  QueuePair qp;
  errno = 0;
  qp.qp_.reset(ibv_create_qp(pd.get(), &attributes));
  if (qp.qp_ == nullptr) {
    return Failed(
        pd.get()->context,
        absl::StrCat("ibv_create_qp with ", sizes.send_requests, " send requests of ",
                     sizes.send_sges, " pieces and ", sizes.receive_requests, " receive requests"));
  }
  return qp;
}

absl::Status QueuePair::Modify(ibv_qp_attr& attributes, int mask, absl::string_view to) {
  if (const int error = ibv_modify_qp(get(), &attributes, mask); error != 0) {
    errno = error;
    return Failed(qp_->context, absl::StrCat("ibv_modify_qp to ", to));
  }
  return absl::OkStatus();
}

absl::Status QueuePair::ToReceive(const Path& path, bool target) {
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = path.port;
  init.qp_access_flags = target ? IBV_ACCESS_REMOTE_WRITE : 0;
  XFER_RETURN_IF_ERROR(
      Modify(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "Init"));
  ibv_qp_attr receive = {};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = MtuOfBytes(path.mtu);
  receive.dest_qp_num = path.remote_qp;
  receive.rq_psn = path.remote_psn;
  receive.max_dest_rd_atomic = 1;
  receive.min_rnr_timer = path.rnr_timer;
  receive.ah_attr.port_num = path.port;
  receive.ah_attr.sl = path.service_level;
  receive.ah_attr.dlid = path.remote_lid;
  if (path.global) {
    receive.ah_attr.is_global = 1;
    receive.ah_attr.grh.dgid = path.remote_gid;
    receive.ah_attr.grh.sgid_index = static_cast<uint8_t>(path.gid_index);
    receive.ah_attr.grh.hop_limit = 64;
    receive.ah_attr.grh.traffic_class = path.traffic_class;
  }
  return Modify(receive,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "Ready To Receive");
}

absl::Status QueuePair::ToSend(const Path& path) {
  ibv_qp_attr send = {};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = path.ack_timeout;
  send.retry_cnt = path.retries;
  send.rnr_retry = 7;  // for ever: the sender's own time limit ends it, with a better message
  send.sq_psn = path.local_psn;
  send.max_rd_atomic = 1;
  return Modify(send,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "Ready To Send");
}

absl::Status QueuePair::ToError() {
  ibv_qp_attr error = {};
  error.qp_state = IBV_QPS_ERR;
  return Modify(error, IBV_QP_STATE, "Error");
}

absl::Status QueuePair::PostReceive(uint64_t id) {
  ibv_recv_wr request = {};
  request.wr_id = id;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(get(), &request, &bad); error != 0) {
    errno = error;
    return Failed(qp_->context, "ibv_post_recv");
  }
  return absl::OkStatus();
}

absl::StatusOr<MemoryRegion> MemoryRegion::Register(const ProtectionDomain& pd, std::byte* base,
                                                    uint64_t bytes, int access) {
  MemoryRegion region;
  errno = 0;
  region.mr_.reset(ibv_reg_mr(pd.get(), base, bytes, access));
  if (region.mr_ != nullptr) return region;
  const int error = errno;
  std::string advice;
  if (error == ENOMEM && !MayLockAnyMemory()) {
    advice = absl::StrCat(" (this process may lock ", LockedMemoryLimit(),
                          " bytes: raise it, e.g. ulimit -l unlimited or LimitMEMLOCK=infinity)");
  } else if (error == EFAULT) {
    advice = " (is all of it mapped, for reading and writing?)";
  }
  errno = error;
  const absl::Status status =
      Failed(pd.get()->context, absl::StrCat("ibv_reg_mr of ", bytes, " bytes"));
  return absl::Status(status.code(), absl::StrCat(status.message(), advice));
}

uint64_t LockedMemoryLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<uint64_t>::max() : limit.rlim_cur;
}

bool MayLockAnyMemory() {
  constexpr uint64_t kCapIpcLock = 14;  // linux/capability.h
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    uint64_t capabilities = 0;
    if (absl::ConsumePrefix(&rest, "CapEff:") &&
        absl::SimpleHexAtoi(absl::StripAsciiWhitespace(rest), &capabilities)) {
      return (capabilities >> kCapIpcLock & 1) != 0;
    }
  }
  return false;
}

}  // namespace xfer::verbs
