#include "tests/unit/agent/transport/verbs/fake_ibverbs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#undef ibv_query_port
#undef ibv_reg_mr

namespace xfer::fake_ibverbs {
namespace {

struct Device {
  ibv_device base = {};
  bool up = true;
  uint64_t requests = 0;       // carried out
  uint64_t until_failure = 0;  // 0: none fails
  ibv_wc_status failure = IBV_WC_SUCCESS;
};
struct Context {
  ibv_context base = {};
  std::deque<ibv_async_event> events;
};
struct Channel {
  ibv_comp_channel base = {};
  ibv_cq* cq = nullptr;
};
struct Cq {
  ibv_cq base = {};
  bool armed = false;
  std::deque<ibv_wc> entries;
};
struct Request {
  ibv_send_wr wr = {};
  std::vector<ibv_sge> pieces;
};
struct Qp {
  ibv_qp base = {};
  ibv_qp_attr attributes = {};
  uint32_t max_send = 0, max_receive = 0;
  std::deque<Request> sends;
  std::deque<uint64_t> receives;  // ids
};
struct Region {
  ibv_mr base = {};
  int access = 0;
};

// All of the fake's state, for ever: threads may outlive main().
struct World {
  absl::Mutex mu;
  std::vector<Device> devices;
  std::map<uint32_t, Qp*> qps;
  std::map<uint32_t, Region*> regions;
  std::deque<Context*> contexts;
  uint32_t next_number = 100;
  uint64_t may_run = kNever;
  bool discard = false;
  // Whatever may let the engine go on, and its standing still.
  absl::CondVar changed;
  int live = 0;
  std::thread engine;
};

void RunEngine();

World& TheWorld() {
  static World* const world = [] {
    auto* w = new World;
    const char* names[] = {"rxe0", "rxe0a", "rxe0b", "rxe1a", "rxe1b"};
    for (const char* name : names) {
      Device& device = w->devices.emplace_back();
      std::snprintf(device.base.name, sizeof(device.base.name), "%s", name);
      std::snprintf(device.base.dev_name, sizeof(device.base.dev_name), "uverbs_%s", name);
    }
    return w;
  }();
  return *world;
}

Device& DeviceOf(const ibv_context* context) { return *reinterpret_cast<Device*>(context->device); }

Device* Find(World& world, const std::string& name) {
  for (Device& device : world.devices) {
    if (device.base.name == name) return &device;
  }
  return nullptr;
}

void Signal(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof(one));
}

void Push(ibv_cq* base, const ibv_wc& completion) {
  Cq& cq = *reinterpret_cast<Cq*>(base);
  // A device would be in serious trouble.
  if (cq.entries.size() >= static_cast<size_t>(cq.base.cqe)) std::abort();
  cq.entries.push_back(completion);
  if (cq.armed) {
    cq.armed = false;
    Signal(cq.base.channel->fd);
  }
}

void Complete(Qp& qp, uint64_t id, ibv_wc_status status, bool receive, uint32_t imm = 0) {
  ibv_wc completion = {};
  completion.wr_id = id;
  completion.status = status;
  completion.qp_num = qp.base.qp_num;
  completion.opcode = receive ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RDMA_WRITE;
  completion.imm_data = imm;
  Push(receive ? qp.base.recv_cq : qp.base.send_cq, completion);
}

void Break(Qp& qp) {
  qp.base.state = IBV_QPS_ERR;
  for (const Request& request : qp.sends)
    Complete(qp, request.wr.wr_id, IBV_WC_WR_FLUSH_ERR, false);
  for (const uint64_t id : qp.receives) Complete(qp, id, IBV_WC_WR_FLUSH_ERR, true);
  qp.sends.clear();
  qp.receives.clear();
}

bool Covers(World& world, uint32_t key, ibv_pd* pd, uint64_t address, uint64_t bytes, int access) {
  const auto it = world.regions.find(key);
  if (it == world.regions.end() || it->second->base.pd != pd ||
      (it->second->access & access) != access)
    return false;
  const uint64_t base = reinterpret_cast<uint64_t>(it->second->base.addr);
  return address >= base && bytes <= it->second->base.length &&
         address - base <= it->second->base.length - bytes;
}

// What becomes of a request; nullopt: it waits for a receive request.
std::optional<ibv_wc_status> CarryOut(World& world, Qp& qp, const Request& request) {
  Device& device = DeviceOf(qp.base.context);
  if (device.until_failure > 0 && --device.until_failure == 0) return device.failure;
  const auto peer = world.qps.find(qp.attributes.dest_qp_num);
  if (!device.up || peer == world.qps.end() || !DeviceOf(peer->second->base.context).up)
    return IBV_WC_RETRY_EXC_ERR;
  Qp& remote = *peer->second;
  if ((remote.base.state != IBV_QPS_RTR && remote.base.state != IBV_QPS_RTS) ||
      remote.attributes.dest_qp_num != qp.base.qp_num ||
      remote.attributes.path_mtu != qp.attributes.path_mtu ||
      remote.attributes.rq_psn != qp.attributes.sq_psn) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  const bool notice = request.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (notice && remote.receives.empty()) return std::nullopt;
  uint64_t bytes = 0;
  for (const ibv_sge& piece : request.pieces) {
    if (!Covers(world, piece.lkey, qp.base.pd, piece.addr, piece.length, 0))
      return IBV_WC_LOC_PROT_ERR;
    bytes += piece.length;
  }
  if (!Covers(world, request.wr.wr.rdma.rkey, remote.base.pd, request.wr.wr.rdma.remote_addr, bytes,
              IBV_ACCESS_REMOTE_WRITE) ||
      (remote.attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
    Break(remote);
    return IBV_WC_REM_ACCESS_ERR;
  }
  auto* out = reinterpret_cast<std::byte*>(request.wr.wr.rdma.remote_addr);
  for (const ibv_sge& piece : request.pieces) {
    std::memcpy(out, reinterpret_cast<const void*>(piece.addr), piece.length);
    out += piece.length;
  }
  if (notice) {
    const uint64_t id = remote.receives.front();
    remote.receives.pop_front();
    Complete(remote, id, IBV_WC_SUCCESS, true, request.wr.imm_data);
  }
  ++device.requests;
  return IBV_WC_SUCCESS;
}

// Takes one request of one queue pair. False: there is none that can go on.
bool Step(World& world) {
  if (world.may_run == 0) return false;
  for (auto& [number, qp] : world.qps) {
    if (qp->sends.empty() || qp->base.state != IBV_QPS_RTS) continue;
    const std::optional<ibv_wc_status> status = CarryOut(world, *qp, qp->sends.front());
    if (!status.has_value()) continue;
    const Request done = std::move(qp->sends.front());
    qp->sends.pop_front();
    if (world.may_run != kNever) --world.may_run;
    if (*status != IBV_WC_SUCCESS) {
      Complete(*qp, done.wr.wr_id, *status, false);
      Break(*qp);
    } else if ((done.wr.send_flags & IBV_SEND_SIGNALED) != 0) {
      Complete(*qp, done.wr.wr_id, *status, false);
    }
    return true;
  }
  return false;
}

void RunEngine() {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  while (true) {
    if (!Step(world)) {
      world.changed.Wait(&world.mu);
      continue;
    }
    if (world.may_run == 0) world.changed.SignalAll();
    // Lets posters and pollers in between.
    world.mu.Unlock();
    std::this_thread::yield();
    world.mu.Lock();
  }
}

int PollCq(ibv_cq* base, int n, ibv_wc* out) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  Cq& cq = *reinterpret_cast<Cq*>(base);
  int count = 0;
  for (; count < n && !cq.entries.empty(); ++count) {
    out[count] = cq.entries.front();
    cq.entries.pop_front();
  }
  return count;
}

int ArmCq(ibv_cq* cq, int) {
  absl::MutexLock lock(&TheWorld().mu);
  reinterpret_cast<Cq*>(cq)->armed = true;
  return 0;
}

int PostSend(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  Qp& qp = *reinterpret_cast<Qp*>(base);
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (world.discard) {
      ++DeviceOf(base->context).requests;
      if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) Complete(qp, wr->wr_id, IBV_WC_SUCCESS, false);
      continue;
    }
    if (base->state == IBV_QPS_ERR) {
      Complete(qp, wr->wr_id, IBV_WC_WR_FLUSH_ERR, false);
      continue;
    }
    if (base->state != IBV_QPS_RTS) return EINVAL;
    if (qp.sends.size() >= qp.max_send) return ENOMEM;
    qp.sends.push_back({*wr, {wr->sg_list, wr->sg_list + wr->num_sge}});
  }
  *bad = nullptr;
  world.changed.SignalAll();
  return 0;
}

int PostReceive(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  absl::MutexLock lock(&TheWorld().mu);
  Qp& qp = *reinterpret_cast<Qp*>(base);
  *bad = wr;
  if (base->state == IBV_QPS_RESET) return EINVAL;
  if (qp.receives.size() >= qp.max_receive) return ENOMEM;
  qp.receives.push_back(wr->wr_id);
  TheWorld().changed.SignalAll();
  return 0;
}

template <typename T>
T* Created(T* object) {
  ++TheWorld().live;
  return object;
}

}  // namespace

void StopAfter(uint64_t requests) {
  absl::MutexLock lock(&TheWorld().mu);
  TheWorld().may_run = requests;
  TheWorld().changed.SignalAll();
}
void Go() { StopAfter(kNever); }

bool AwaitStopped() {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (world.may_run > 0) {
    if (world.changed.WaitWithDeadline(&world.mu, deadline)) return false;
  }
  return true;
}

void FailRequest(const std::string& device, uint64_t n, ibv_wc_status status) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  Find(world, device)->until_failure = n;
  Find(world, device)->failure = status;
}

void SetPort(const std::string& name, bool up, bool tell) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  Device& device = *Find(world, name);
  device.up = up;
  for (Context* context : world.contexts) {
    if (!tell || &DeviceOf(&context->base) != &device) continue;
    ibv_async_event event = {};
    event.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
    event.element.port_num = 1;
    context->events.push_back(event);
    Signal(context->base.async_fd);
  }
}

uint64_t Requests(const std::string& device) {
  absl::MutexLock lock(&TheWorld().mu);
  return Find(TheWorld(), device)->requests;
}

void SetDiscard(bool discard) {
  absl::MutexLock lock(&TheWorld().mu);
  TheWorld().discard = discard;
}

void Reset() {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  world.may_run = kNever;
  world.changed.SignalAll();
  for (Device& device : world.devices) {
    device.up = true;
    device.until_failure = 0;
  }
}

int LiveObjects() {
  absl::MutexLock lock(&TheWorld().mu);
  return TheWorld().live;
}

}  // namespace xfer::fake_ibverbs

// ---- The functions of libibverbs ----

using namespace xfer::fake_ibverbs;  // NOLINT(google-build-using-namespace)

extern "C" {

int ibv_fork_init() { return 0; }

ibv_device** ibv_get_device_list(int* count) {
  World& world = TheWorld();
  auto** list = new ibv_device*[world.devices.size() + 1]();
  for (size_t i = 0; i < world.devices.size(); ++i) list[i] = &world.devices[i].base;
  *count = static_cast<int>(world.devices.size());
  return list;
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device* device) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  if (!world.engine.joinable()) world.engine = std::thread(RunEngine);
  auto* context = Created(new Context);
  context->base.device = device;
  context->base.ops.poll_cq = PollCq;
  context->base.ops.req_notify_cq = ArmCq;
  context->base.ops.post_send = PostSend;
  context->base.ops.post_recv = PostReceive;
  context->base.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  world.contexts.push_back(context);
  return &context->base;
}
int ibv_close_device(ibv_context* base) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  auto* context = reinterpret_cast<Context*>(base);
  std::erase(world.contexts, context);
  close(base->async_fd);
  delete context;
  --world.live;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->max_mr_size = 1ull << 40;
  attributes->max_qp_wr = 4096;
  attributes->max_sge = 8;
  attributes->max_cqe = 1 << 16;
  attributes->phys_port_cnt = 1;
  return 0;
}
int ibv_query_port(ibv_context* context, uint8_t, _compat_ibv_port_attr* out) {
  absl::MutexLock lock(&TheWorld().mu);
  auto* attributes = reinterpret_cast<ibv_port_attr*>(out);
  attributes->state = DeviceOf(context).up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attributes->max_mtu = attributes->active_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = 2;
  attributes->active_width = 2;
  attributes->active_speed = 64;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}
int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t, size_t) {
  World& world = TheWorld();
  *entry = {};
  entry->gid_index = index;
  entry->port_num = port;
  entry->gid_type = IBV_GID_TYPE_ROCE_V2;
  const auto host = static_cast<uint8_t>(&DeviceOf(context) - world.devices.data() + 1);
  if (index == 0) {
    entry->gid.raw[0] = 0xfe;
    entry->gid.raw[1] = 0x80;
  } else {
    const std::array<uint8_t, 6> ipv4 = {0xff, 0xff, 192, 0, 2, 0};
    std::memcpy(&entry->gid.raw[10], ipv4.data(), ipv4.size());
  }
  entry->gid.raw[15] = host;
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  absl::MutexLock lock(&TheWorld().mu);
  auto* pd = Created(new ibv_pd());
  pd->context = context;
  return pd;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  absl::MutexLock lock(&TheWorld().mu);
  delete pd;
  --TheWorld().live;
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t, unsigned int access) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  auto* region = Created(new Region);
  region->base.context = pd->context;
  region->base.pd = pd;
  region->base.addr = address;
  region->base.length = bytes;
  region->base.lkey = region->base.rkey = world.next_number++;
  region->access = static_cast<int>(access);
  world.regions[region->base.lkey] = region;
  return &region->base;
}
int ibv_dereg_mr(ibv_mr* base) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  world.regions.erase(base->lkey);
  delete reinterpret_cast<Region*>(base);
  --world.live;
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  absl::MutexLock lock(&TheWorld().mu);
  auto* channel = Created(new Channel);
  channel->base.context = context;
  channel->base.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  return &channel->base;
}
int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  absl::MutexLock lock(&TheWorld().mu);
  close(base->fd);
  delete reinterpret_cast<Channel*>(base);
  --TheWorld().live;
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                      ibv_comp_channel* channel, int) {
  absl::MutexLock lock(&TheWorld().mu);
  auto* cq = Created(new Cq);
  cq->base.context = context;
  cq->base.channel = channel;
  cq->base.cq_context = cq_context;
  cq->base.cqe = entries;
  reinterpret_cast<Channel*>(channel)->cq = &cq->base;
  return &cq->base;
}
int ibv_destroy_cq(ibv_cq* cq) {
  absl::MutexLock lock(&TheWorld().mu);
  delete reinterpret_cast<Cq*>(cq);
  --TheWorld().live;
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  uint64_t count = 0;
  if (read(channel->fd, &count, sizeof(count)) != sizeof(count)) return -1;
  *cq = reinterpret_cast<Channel*>(channel)->cq;
  *cq_context = (*cq)->cq_context;
  return 0;
}
void ibv_ack_cq_events(ibv_cq*, unsigned int) {}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  if (attributes->cap.max_send_sge > 8) {
    errno = EINVAL;
    return nullptr;
  }
  auto* qp = Created(new Qp);
  qp->base.context = pd->context;
  qp->base.pd = pd;
  qp->base.send_cq = attributes->send_cq;
  qp->base.recv_cq = attributes->recv_cq;
  qp->base.qp_num = world.next_number++;
  qp->base.state = IBV_QPS_RESET;
  qp->max_send = attributes->cap.max_send_wr;
  qp->max_receive = attributes->cap.max_recv_wr;
  world.qps[qp->base.qp_num] = qp;
  return &qp->base;
}
int ibv_destroy_qp(ibv_qp* base) {
  World& world = TheWorld();
  absl::MutexLock lock(&world.mu);
  world.qps.erase(base->qp_num);
  world.changed.SignalAll();
  delete reinterpret_cast<Qp*>(base);
  --world.live;
  return 0;
}
int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attributes, int mask) {
  absl::MutexLock lock(&TheWorld().mu);
  Qp& qp = *reinterpret_cast<Qp*>(base);
  if (attributes->qp_state == IBV_QPS_ERR) {
    Break(qp);
    return 0;
  }
  const bool in_order = (base->state == IBV_QPS_RESET && attributes->qp_state == IBV_QPS_INIT) ||
                        (base->state == IBV_QPS_INIT && attributes->qp_state == IBV_QPS_RTR) ||
                        (base->state == IBV_QPS_RTR && attributes->qp_state == IBV_QPS_RTS);
  if (!in_order) return EINVAL;
  base->state = attributes->qp_state;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0)
    qp.attributes.qp_access_flags = attributes->qp_access_flags;
  if ((mask & IBV_QP_PATH_MTU) != 0) qp.attributes.path_mtu = attributes->path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) qp.attributes.dest_qp_num = attributes->dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) qp.attributes.rq_psn = attributes->rq_psn;
  if ((mask & IBV_QP_SQ_PSN) != 0) qp.attributes.sq_psn = attributes->sq_psn;
  return 0;
}

int ibv_get_async_event(ibv_context* base, ibv_async_event* event) {
  uint64_t count = 0;
  if (read(base->async_fd, &count, sizeof(count)) != sizeof(count)) return -1;
  absl::MutexLock lock(&TheWorld().mu);
  auto* context = reinterpret_cast<Context*>(base);
  *event = context->events.front();
  context->events.pop_front();
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}

}  // extern "C"
