// The verbs transport from memory to memory of this machine, through its RDMA devices; no digests,
// so that the transport alone is measured. tests/bench/verbs.sh runs it beside ib_write_bw.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/verbs.h"
#include "common/base/logging.h"

namespace xfer {
namespace {

constexpr SyncKey kSync{1, 2};

// One transfer, not checked.
class OneTransferTable final : public ReceiveTable {
 public:
  void Expect(const Transfer* transfer, Memory memory) { target_ = {transfer, memory}; }
  absl::StatusOr<Target> Enter(const SyncKey&, TransferId) override { return target_; }
  void Leave(const SyncKey&, TransferId) override {}
  void Arrived(const SyncKey&, TransferId, uint64_t, uint64_t) override {}
  absl::Status Finished(const SyncKey&, TransferId, uint64_t) override { return absl::OkStatus(); }

 private:
  Target target_;
};

class InProcessControl final : public VerbsControl {
 public:
  VerbsTransport* receiver = nullptr;
  absl::StatusOr<v1::VerbsReply> Call(const PeerAddress&, const v1::VerbsRequest& request,
                                      absl::Time) override {
    return receiver->Serve(request);
  }
};

// Sends the transfer once; seconds from the first post to the finish's answer.
absl::StatusOr<double> SendOnce(Endpoint& endpoint, const Transfer& transfer, Memory source) {
  const absl::Time start = absl::Now();
  std::vector<Completion> done;
  absl::Status status = endpoint.PostRange({kSync, &transfer, source, 0, transfer.bytes});
  if (status.ok()) status = endpoint.PostFinish(kSync, transfer, 0);
  while (status.ok() && (done.empty() || !done.back().finish)) {
    status = endpoint.Poll(absl::Seconds(10), done);
  }
  for (const Completion& completion : done) status.Update(completion.status);
  if (!status.ok()) return status;
  return absl::ToDoubleSeconds(absl::Now() - start);
}

absl::Status Run(const std::string& tuning_text, const std::string& receiver_nics, uint64_t mib,
                 int runs, uint64_t run_bytes) {
  const auto tuning = verbs::ParseTuning(tuning_text);
  if (!tuning.ok()) return tuning.status();
  verbs::Tuning receiving = *tuning;
  if (!receiver_nics.empty()) receiving.nics = {receiver_nics};
  OneTransferTable table;
  auto control = std::make_shared<InProcessControl>();
  auto receiver = MakeVerbsTransport({"receiver", 1, &table, control, receiving});
  if (!receiver.ok()) return receiver.status();
  control->receiver = receiver->get();
  auto sender = MakeVerbsTransport({"sender", 2, &table, control, *tuning});
  if (!sender.ok()) return sender.status();

  // Destination runs of `run_bytes`, or one.
  Transfer transfer;
  transfer.id = 1;
  transfer.bytes = mib << 20;
  if (run_bytes == 0) run_bytes = transfer.bytes;
  const uint64_t count = transfer.bytes / run_bytes;
  transfer.bytes = count * run_bytes;
  Copy copy{0, 0, run_bytes, {}};
  if (count > 1) {
    copy.levels.push_back(
        {count, static_cast<int64_t>(run_bytes) * 2, static_cast<int64_t>(run_bytes)});
  }
  transfer.copies = {copy};
  std::vector<std::byte> source(count > 1 ? transfer.bytes * 2 : transfer.bytes, std::byte{1});
  std::vector<std::byte> destination(transfer.bytes);
  const Memory from{source.data(), source.size()}, to{destination.data(), destination.size()};
  absl::Status status = (*sender)->Register(from);
  status.Update((*receiver)->Register(to));
  if (!status.ok()) return status;
  table.Expect(&transfer, to);
  auto endpoint = (*sender)->Connect({"receiver", 1, ""}, absl::Now() + absl::Seconds(10));
  if (!endpoint.ok()) return endpoint.status();
  std::vector<double> rates;
  for (int i = 0; i <= runs; ++i) {
    const absl::StatusOr<double> seconds = SendOnce(**endpoint, transfer, from);
    if (!seconds.ok()) return seconds.status();
    // The first one warms up caches and page tables.
    if (i > 0) rates.push_back(static_cast<double>(transfer.bytes) / (1 << 20) / *seconds);
  }
  std::sort(rates.begin(), rates.end());
  std::printf(
      "{\"mib_per_s\": %.2f, \"least\": %.2f, \"most\": %.2f, \"mib\": %llu, \"runs\": %d}\n",
      rates[rates.size() / 2], rates.front(), rates.back(), static_cast<unsigned long long>(mib),
      runs);
  endpoint->reset();
  return absl::OkStatus();
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) {
  CLI::App app("The verbs transport within one machine: MiB/s of the median run, as JSON.");
  std::string tuning, receiver_nics;
  uint64_t mib = 64, run_bytes = 0;
  int runs = 3;
  app.add_option("--tuning", tuning, "settings, as name=value,name=value");
  app.add_option("--receiver-nics", receiver_nics,
                 "the receiver's, where they differ from tuning's");
  app.add_option("--mib", mib, "of one run")->check(CLI::Range(1, 1 << 20));
  app.add_option("--runs", runs)->check(CLI::Range(1, 1000));
  app.add_option("--source-run", run_bytes,
                 "the source is strided, with runs of so many bytes; 0: it is not");
  CLI11_PARSE(app, argc, argv);
  xfer::LogOptions log;
  log.process = "verbs_bench";
  log.level = "warn";
  absl::Status status = xfer::InitLogging(log);
  status.Update(xfer::Run(tuning, receiver_nics, mib, runs, run_bytes));
  if (status.ok()) return 0;
  std::fprintf(stderr, "verbs_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
