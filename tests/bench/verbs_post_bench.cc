// What posting and polling cost the sending thread, over devices that do nothing (fake_ibverbs):
// nanoseconds a work request, from PostRange() to the range's completion. The time includes the
// fake's own, some 20 ns a request.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <memory>
#include <vector>

#include "agent/transport/verbs/verbs.h"
#include "common/base/logging.h"
#include "tests/unit/agent/transport/verbs/fake_ibverbs.h"

namespace xfer {
namespace {

constexpr SyncKey kSync{1, 2};
constexpr uint64_t kBytes = 1ull << 30;

class OneTransferTable final : public ReceiveTable {
 public:
  Target target;
  absl::StatusOr<Target> Enter(const SyncKey&, TransferId) override { return target; }
  void Leave(const SyncKey&, TransferId) override {}
  void Arrived(const SyncKey&, TransferId, uint64_t, uint64_t) override {}
  absl::Status Finished(const SyncKey&, TransferId, uint64_t) override { return absl::OkStatus(); }
};

class InProcessControl final : public VerbsControl {
 public:
  VerbsTransport* receiver = nullptr;
  absl::StatusOr<v1::VerbsReply> Call(const PeerAddress&, const v1::VerbsRequest& request,
                                      absl::Time) override {
    return receiver->Serve(request);
  }
};

// Address space that is never touched.
Memory Reserve(uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return {base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base), bytes};
}

// range(0): bytes of a destination run; range(1): of a source run, as large or smaller.
void BM_PostAndPoll(benchmark::State& state) {
  const auto run = static_cast<uint64_t>(state.range(0)),
             piece = static_cast<uint64_t>(state.range(1));
  const uint64_t bytes = std::min(kBytes, run * 65536);
  Transfer transfer;
  transfer.id = 1;
  transfer.bytes = bytes;
  Copy copy{0, 0, piece, {}};
  if (run < bytes)
    copy.levels.push_back(
        {bytes / run, static_cast<int64_t>(run * 2), static_cast<int64_t>(run * 2)});
  if (piece < run) {
    copy.levels.push_back(
        {run / piece, static_cast<int64_t>(piece * 2), static_cast<int64_t>(piece)});
  }
  transfer.copies = {copy};
  const Memory source = Reserve(4 * bytes), destination = Reserve(4 * bytes);
  OneTransferTable table;
  table.target = {&transfer, destination};
  auto control = std::make_shared<InProcessControl>();
  verbs::Tuning tuning;
  tuning.nics = {"rxe0"};
  auto receiver = MakeVerbsTransport({"receiver", 1, &table, control, tuning});
  auto sender = MakeVerbsTransport({"sender", 2, &table, control, tuning});
  if (!receiver.ok() || !sender.ok()) return state.SkipWithError("no transport");
  control->receiver = receiver->get();
  absl::Status status = (*sender)->Register(source);
  status.Update((*receiver)->Register(destination));
  fake_ibverbs::SetDiscard(true);
  uint64_t requests = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto endpoint = (*sender)->Connect({"receiver", 1, ""}, absl::Now() + absl::Seconds(10));
    if (!endpoint.ok()) return state.SkipWithError("no endpoint");
    std::vector<Completion> done;
    // The first range waits for the receiver's answer, which is not what is measured.
    status.Update((*endpoint)->PostRange({kSync, &transfer, source, 0, 4096}));
    while (status.ok() && done.empty()) status.Update((*endpoint)->Poll(absl::Seconds(1), done));
    const uint64_t before = fake_ibverbs::Requests("rxe0");
    state.ResumeTiming();
    status.Update((*endpoint)->PostRange({kSync, &transfer, source, 4096, transfer.bytes}));
    while (status.ok() && done.size() < 2) status.Update((*endpoint)->Poll(absl::Seconds(1), done));
    state.PauseTiming();
    requests += fake_ibverbs::Requests("rxe0") - before;
    endpoint->reset();
    state.ResumeTiming();
  }
  fake_ibverbs::SetDiscard(false);
  if (!status.ok()) return state.SkipWithError(std::string(status.message()).c_str());
  state.counters["requests"] =
      static_cast<double>(requests) / static_cast<double>(state.iterations());
  // Seconds a request; shown with its SI prefix.
  state.counters["s/request"] = benchmark::Counter(
      static_cast<double>(requests), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  munmap(source.base, source.bytes);
  munmap(destination.base, destination.bytes);
}
BENCHMARK(BM_PostAndPoll)
    ->ArgNames({"run", "piece"})
    ->Args({1 << 30, 1 << 30})  // chunks of 1 MiB
    ->Args({4096, 4096})        // a request for each run
    ->Args({4096, 512})         // gathered from 8 pieces
    ->Iterations(20);

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) {
  xfer::LogOptions log;
  log.process = "verbs_post_bench";
  log.level = "warn";
  if (!xfer::InitLogging(log).ok()) return 1;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
