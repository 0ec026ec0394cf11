#include "tests/unit/agent/exec/test_cluster.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/local.h"
#include "common/base/unique_fd.h"
#include "common/rpc/convert.h"

namespace xfer {
namespace {

constexpr char kJob[] = "job";

// A faulty transport in the place of the one that it wraps.
class Disguised final : public Transport {
 public:
  Disguised(std::string name, std::unique_ptr<Transport> inner)
      : name_(std::move(name)), inner_(std::move(inner)) {}
  absl::string_view name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const PeerAddress& peer,
                                                    absl::Time deadline) override {
    return inner_->Connect(peer, deadline);
  }

 private:
  const std::string name_;
  const std::unique_ptr<Transport> inner_;
};

std::unique_ptr<Transport> WithFaults(std::unique_ptr<Transport> inner, const FaultPlan& faults) {
  const std::string name(inner->name());
  return std::make_unique<Disguised>(name, MakeFaultyTransport(std::move(inner), faults));
}

}  // namespace

TestRegion MakeTestRegion(uint64_t bytes) {
  const UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return {*MappedRegion::Map(fd.get(), 0, bytes), *MappedRegion::Map(fd.get(), 0, bytes)};
}

void Fill(absl::Span<std::byte> bytes, uint32_t seed) {
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
}

// --- FakeLink

absl::Status FakeLink::FetchPlan(uint64_t plan_id, absl::Time,
                                 absl::FunctionRef<absl::Status(const v1::PlanPart&)> part) {
  v1::PlanPart found;
  {
    absl::MutexLock lock(&mu_);
    ++fetches_;
    auto it = plans_.find(plan_id);
    if (it == plans_.end()) return absl::NotFoundError(absl::StrCat("no plan ", plan_id));
    found = it->second;
  }
  return part(found);
}

absl::Status FakeLink::ReportTimings(const std::vector<v1::TransferTimings>& batches, absl::Time) {
  absl::MutexLock lock(&mu_);
  timings_.insert(timings_.end(), batches.begin(), batches.end());
  return absl::OkStatus();
}

void FakeLink::Send(v1::AgentEvent event) {
  absl::MutexLock lock(&mu_);
  if (event.has_step_result()) results_.push_back(event.step_result());
}

void FakeLink::SetPlan(uint64_t plan_id, v1::PlanPart part) {
  absl::MutexLock lock(&mu_);
  plans_[plan_id] = std::move(part);
}

int FakeLink::fetches() const {
  absl::MutexLock lock(&mu_);
  return fetches_;
}

v1::StepResult FakeLink::Await(uint64_t sync_id, v1::StepKind kind, absl::Duration limit) {
  v1::StepResult found;
  const auto has = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const v1::StepResult& result : results_) {
      if (result.sync_id() != sync_id || result.kind() != kind) continue;
      found = result;
      return true;
    }
    return false;
  };
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&has), limit))
      << v1::StepKind_Name(kind) << " of sync " << sync_id << " was not answered";
  return found;
}

int FakeLink::answers(uint64_t sync_id, v1::StepKind kind) const {
  absl::MutexLock lock(&mu_);
  int count = 0;
  for (const v1::StepResult& result : results_) {
    if (result.sync_id() == sync_id && result.kind() == kind) ++count;
  }
  return count;
}

std::vector<v1::TransferTimings> FakeLink::AwaitTimings() {
  const auto has = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !timings_.empty(); };
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&has), absl::Seconds(10));
  return timings_;
}

// --- FakeHooks

void FakeHooks::Call(const HookOrder& order, std::function<void(absl::Status)> done) {
  std::optional<absl::Status> status = absl::OkStatus();
  {
    absl::MutexLock lock(&mu_);
    calls_.push_back(order);
    if (answer_) status = answer_(order);
  }
  if (status.has_value()) done(*status);
}

void FakeHooks::SetAnswer(Answer answer) {
  absl::MutexLock lock(&mu_);
  answer_ = std::move(answer);
}

std::vector<HookOrder> FakeHooks::calls() const {
  absl::MutexLock lock(&mu_);
  return calls_;
}

bool FakeHooks::AwaitCalls(HookKind hook, size_t n) {
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    size_t count = 0;
    for (const HookOrder& call : calls_) count += call.hook == hook ? 1 : 0;
    return count >= n;
  };
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(20));
}

// --- TestNode

TestNode::TestNode(TestCluster* cluster, std::string name, const FaultPlan& faults,
                   const ExecutorOptions& given)
    : cluster(cluster), name(std::move(name)), incarnation(1000 + this->name.size()) {
  TcpOptions tcp_options;
  tcp_options.node = this->name;
  tcp_options.incarnation = incarnation;
  tcp_options.streams = 2;
  tcp_options.io_threads = 1;
  tcp_options.table = receive.For("tcp");
  absl::StatusOr<std::unique_ptr<TcpTransport>> made = MakeTcpTransport(tcp_options);
  EXPECT_TRUE(made.ok()) << made.status();
  tcp_port = made->get();
  tcp = WithFaults(*std::move(made), faults);
  LocalOptions local_options;
  local_options.threads = 2;
  local_options.table = receive.For("local");
  local = WithFaults(MakeLocalTransport(local_options), faults);
  const std::vector<Transport*> transports = {local.get(), tcp.get()};
  ranks = std::make_unique<RankTable>(1, transports);
  endpoints = std::make_unique<EndpointPool>(AsPeer(), transports, this);
  ExecutorOptions options = given;
  options.node = this->name;
  options.threads = 4;
  executor = std::make_unique<SyncExecutor>(options, ranks.get(), &receive, endpoints.get(), &hooks,
                                            &link);
}

v1::Peer TestNode::AsPeer() const {
  v1::Peer peer;
  peer.set_node(name);
  peer.set_incarnation(incarnation);
  peer.set_peer_address(name);
  peer.set_data_address(absl::StrCat("127.0.0.1:", tcp_port->port()));
  return peer;
}

absl::StatusOr<PeerIdentity> TestNode::Identify(const v1::Peer& peer, absl::Time) {
  auto found = cluster->nodes_.find(peer.node());
  if (found == cluster->nodes_.end()) return absl::UnavailableError("no such agent");
  return PeerIdentity{found->first, found->second->incarnation, peer.data_address(), {"tcp"}};
}

// --- TestCluster

TestNode& TestCluster::AddNode(const std::string& name, const FaultPlan& faults) {
  nodes_[name] = std::make_unique<TestNode>(this, name, faults, options_);
  return *nodes_[name];
}

int TestCluster::AddRank(const std::string& node_name, RankId id, uint64_t bytes) {
  TestRegion region = MakeTestRegion(bytes);
  Fill(region.owner.bytes(), static_cast<uint32_t>(ranks_.size()) + 1);
  LocalRankInfo info;
  info.job = kJob;
  info.id = id;
  info.pid = 100 + static_cast<int64_t>(ranks_.size());
  std::vector<MappedRegion> regions;
  regions.push_back(std::move(region.agent));
  const RankPin pin = *node(node_name).ranks->Add(info, std::move(regions), 0);
  ranks_.push_back({id, node_name, pin->registration_id(), region.owner.bytes()});
  owned_.push_back(std::move(region.owner));
  return static_cast<int>(ranks_.size()) - 1;
}

Transfer& TestCluster::AddTransfer(int source, int destination, uint64_t offset, uint64_t bytes) {
  Transfer& transfer = transfers.emplace_back();
  transfer.id = static_cast<TransferId>(transfers.size() * 10);
  transfer.tensor = static_cast<TensorId>(transfers.size() - 1);
  transfer.box = Box::Whole({static_cast<int64_t>(bytes)});
  transfer.source = source;
  transfer.destination = destination;
  Copy& copy = transfer.copies.emplace_back();
  copy.source_offset = offset;
  copy.destination_offset = offset;
  copy.run = bytes;
  transfer.bytes = bytes;
  return transfer;
}

void TestCluster::Publish(uint64_t id) {
  plan_id = id;
  for (auto& [name, node] : nodes_) {
    v1::PlanPart part;
    v1::PlanHeader& header = *part.mutable_header();
    header.set_plan_id(id);
    header.set_job(kJob);
    for (const TestRank& rank : ranks_) {
      v1::PlanRank* out = header.add_ranks();
      *out->mutable_id() = ToProto(rank.id);
      out->set_node(rank.node);
      out->set_registration_id(rank.registration_id);
    }
    for (const Transfer& transfer : transfers) {
      header.add_tensor_names(absl::StrCat("tensor.", transfer.tensor));
      if (ranks_[transfer.source].node != name && ranks_[transfer.destination].node != name) {
        continue;
      }
      *part.add_transfers() = ToProto(transfer);
    }
    header.set_transfers(part.transfers_size());
    node->link.SetPlan(id, part);
  }
}

v1::Step TestCluster::MakeStep(uint64_t sync_id, v1::StepKind kind, absl::Duration deadline) const {
  v1::Step step;
  step.set_sync_id(sync_id);
  step.set_kind(kind);
  step.set_job(kJob);
  step.set_deadline_ms(absl::ToInt64Milliseconds(deadline));
  step.set_version(7);
  step.set_plan_id(plan_id);
  step.set_secret(sync_id * 1000 + 1);
  step.set_success(true);
  if (kind == v1::STEP_KIND_CONNECT) {
    for (const auto& [name, node] : nodes_) *step.add_peers() = node->AsPeer();
  }
  return step;
}

void TestCluster::SendStep(const std::string& name, v1::Step step) {
  for (const TestRank& rank : ranks_) {
    const bool takes_part = step.kind() == v1::STEP_KIND_PAUSE ||
                            step.kind() == v1::STEP_KIND_RESUME ||
                            (step.kind() == v1::STEP_KIND_COMMIT && rank.id.role == Role::kRollout);
    if (takes_part && rank.node == name) *step.add_ranks() = ToProto(rank.id);
  }
  node(name).executor->HandleStep(std::move(step));
}

std::map<std::string, v1::StepResult> TestCluster::RunStep(const v1::Step& step) {
  for (auto& [name, node] : nodes_) SendStep(name, step);
  std::map<std::string, v1::StepResult> results;
  for (auto& [name, node] : nodes_) {
    results[name] = node->link.Await(step.sync_id(), step.kind());
  }
  return results;
}

void TestCluster::RunSync(uint64_t sync_id, const std::function<void(v1::Step&)>& change) {
  for (v1::StepKind kind : {v1::STEP_KIND_CONNECT, v1::STEP_KIND_PAUSE, v1::STEP_KIND_TRANSFER,
                            v1::STEP_KIND_COMMIT, v1::STEP_KIND_RESUME}) {
    v1::Step step = MakeStep(sync_id, kind);
    if (change) change(step);
    for (const auto& [name, result] : RunStep(step)) {
      EXPECT_EQ(result.outcome().code(), 0)
          << name << " " << v1::StepKind_Name(kind) << ": " << result.outcome().message();
    }
  }
  v1::EndSync end;
  end.set_sync_id(sync_id);
  for (auto& [name, node] : nodes_) node->executor->HandleEndSync(end);
}

}  // namespace xfer
