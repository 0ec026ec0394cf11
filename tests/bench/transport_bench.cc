// How close the transports come to the machine: `local` against memcpy with the same threads, `tcp`
// over loopback (receiver in a process of its own) against plain send/recv loops over as many
// sockets. Baseline and transport take turns; medians are printed. Run by hand, on a quiet machine.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/transport/local.h"
#include "agent/transport/socket.h"
#include "agent/transport/tcp.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "tests/unit/agent/transport/fake_receive_table.h"

namespace xfer {
namespace {

constexpr SyncKey kSync{1, 2};
constexpr uint64_t kRangeBytes = 16 << 20;
constexpr uint64_t kRow = 4096;

struct Options {
  uint64_t mib = 512;
  int threads = 2;
  int streams = 4;
  int runs = 5;
  bool json = false;
  std::string only;
};

[[noreturn]] void Die(const absl::Status& status) {
  std::cerr << status << "\n";
  std::exit(1);
}
void Check(const absl::Status& status) {
  if (!status.ok()) Die(status);
}

// Touched, so that no page fault falls into a measurement.
Memory Allocate(uint64_t bytes, int fill) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) Die(absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes)));
  std::memset(base, fill, bytes);
  return {static_cast<std::byte*>(base), bytes};
}

// One run, or rows of kRow bytes that are 2 * kRow apart at the destination.
Transfer MakeTransfer(TransferId id, uint64_t bytes, bool strided) {
  Transfer transfer;
  transfer.id = id;
  transfer.bytes = bytes;
  Copy copy{0, 0, bytes, {}};
  if (strided) copy = {0, 0, kRow, {{bytes / kRow, int64_t{kRow}, int64_t{2 * kRow}}}};
  transfer.copies.push_back(copy);
  return transfer;
}

double GigabytesPerSecond(uint64_t bytes, const std::function<void()>& work) {
  const int64_t start = Clock::Real()->MonotonicNanos();
  work();
  return static_cast<double>(bytes) / static_cast<double>(Clock::Real()->MonotonicNanos() - start);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Named measurements that are taken in turn.
struct Contest {
  std::string name;
  std::vector<std::pair<std::string, std::function<double()>>>
      entries;  // the first is the baseline
};

nlohmann::json RunContest(const Contest& contest, const Options& options) {
  std::vector<std::vector<double>> rates(contest.entries.size());
  for (int run = 0; run < options.runs; ++run) {
    for (size_t i = 0; i < rates.size(); ++i) rates[i].push_back(contest.entries[i].second());
  }
  nlohmann::json rows = nlohmann::json::array();
  const double baseline = Median(rates[0]);
  for (size_t i = 0; i < rates.size(); ++i) {
    const double median = Median(rates[i]);
    rows.push_back({{"contest", contest.name},
                    {"entry", contest.entries[i].first},
                    {"gb_per_s", median},
                    {"least", *std::min_element(rates[i].begin(), rates[i].end())},
                    {"most", *std::max_element(rates[i].begin(), rates[i].end())},
                    {"ratio", median / baseline}});
    if (!options.json) {
      std::cout << absl::StrFormat("%-18s %-26s %8.2f GB/s  (%.2f to %.2f)  %5.2f of baseline\n",
                                   contest.name, contest.entries[i].first, median,
                                   rows.back()["least"].get<double>(),
                                   rows.back()["most"].get<double>(), median / baseline)
                << std::flush;
    }
  }
  return rows;
}

// Sends the whole transfer and waits for its answer.
double Send(Endpoint& endpoint, const Transfer& transfer, Memory source, uint64_t digest) {
  return GigabytesPerSecond(transfer.bytes, [&] {
    std::vector<Completion> done;
    for (uint64_t begin = 0; begin < transfer.bytes; begin += kRangeBytes) {
      Check(endpoint.PostRange(
          {kSync, &transfer, source, begin, std::min(transfer.bytes, begin + kRangeBytes)}));
    }
    Check(endpoint.PostFinish(kSync, transfer, digest));
    while (true) {
      Check(endpoint.Poll(absl::Seconds(1), done));
      for (const Completion& completion : done) {
        Check(completion.status);
        if (completion.finish) return;
      }
      done.clear();
    }
  });
}

double PlainMemcpy(uint64_t bytes, bool strided, Memory source, Memory destination, int threads) {
  return GigabytesPerSecond(bytes, [&] {
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
      const uint64_t begin = bytes / kRow * t / threads * kRow;
      const uint64_t end = bytes / kRow * (t + 1) / threads * kRow;
      workers.emplace_back([=] {
        if (!strided) {
          std::memcpy(destination.base + begin, source.base + begin, end - begin);
          return;
        }
        for (uint64_t at = begin; at < end; at += kRow) {
          std::memcpy(destination.base + 2 * at, source.base + at, kRow);
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
  });
}

void BenchLocal(const Options& options, nlohmann::json& rows) {
  const uint64_t bytes = options.mib << 20;
  const Memory source = Allocate(bytes, 1);
  const Memory destination = Allocate(2 * bytes, 2);
  const uint64_t digest = DigestRange(0, absl::MakeSpan(source.base, bytes));
  FakeReceiveTable plain(/*verify=*/false);
  FakeReceiveTable verifying(/*verify=*/true);
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (FakeReceiveTable* table : {&plain, &verifying}) {
    transports.push_back(MakeLocalTransport({.threads = options.threads, .table = table}));
    endpoints.push_back(*transports.back()->Connect({"self", 1, ""}, absl::InfiniteFuture()));
  }
  for (const bool strided : {false, true}) {
    const Transfer transfer = MakeTransfer(strided ? 2 : 1, bytes, strided);
    plain.Add(kSync, transfer, destination);
    verifying.Add(kSync, transfer, destination);
    const Contest contest = {
        strided ? "local, 4 KiB rows" : "local, contiguous",
        {{"memcpy",
          [&] { return PlainMemcpy(bytes, strided, source, destination, options.threads); }},
         {"local, without digests", [&] { return Send(*endpoints[0], transfer, source, digest); }},
         {"local, with digests", [&] { return Send(*endpoints[1], transfer, source, digest); }}}};
    for (const auto& row : RunContest(contest, options)) rows.push_back(row);
  }
  munmap(source.base, source.bytes);
  munmap(destination.base, destination.bytes);
}

// The child of BenchTcp: two transports and a plain listener, all into the same memory.
struct Ports {
  uint16_t plain = 0, verifying = 0, raw = 0;
};

void ReceiveRaw(int listener, Memory destination, uint64_t bytes, int streams) {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < streams; ++i) {
    Check(WaitFor(listener, POLLIN, absl::InfiniteFuture()));
    fds.emplace_back(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  }
  std::vector<std::thread> workers;
  for (int i = 0; i < streams; ++i) {
    workers.emplace_back([&, i] {
      std::byte* at = destination.base + bytes / streams * i;
      uint64_t left = bytes / streams;
      while (left > 0) {
        const ssize_t n = recv(fds[i].get(), at, std::min<uint64_t>(left, 1 << 20), 0);
        if (n <= 0) Die(absl::UnavailableError("raw recv"));
        at += n;
        left -= static_cast<uint64_t>(n);
      }
      Check(WriteAll(fds[i].get(), "k", absl::InfiniteFuture()));
    });
  }
  for (std::thread& worker : workers) worker.join();
}

[[noreturn]] void Serve(const Options& options, int out) {
  const uint64_t bytes = options.mib << 20;
  const Memory destination = Allocate(2 * bytes, 2);
  FakeReceiveTable plain(/*verify=*/false);
  FakeReceiveTable verifying(/*verify=*/true);
  Ports ports;
  std::vector<std::unique_ptr<TcpTransport>> transports;
  for (FakeReceiveTable* table : {&plain, &verifying}) {
    for (const bool strided : {false, true}) {
      table->Add(kSync, MakeTransfer(strided ? 2 : 1, bytes, strided), destination);
    }
    TcpOptions tcp;
    tcp.node = "receiver";
    tcp.io_threads = options.threads;
    tcp.table = table;
    absl::StatusOr<std::unique_ptr<TcpTransport>> transport = MakeTcpTransport(tcp);
    Check(transport.status());
    transports.push_back(*std::move(transport));
  }
  absl::StatusOr<UniqueFd> listener = Listen("127.0.0.1:0");
  Check(listener.status());
  ports = {transports[0]->port(), transports[1]->port(), LocalAddress(listener->get())->port()};
  if (write(out, &ports, sizeof(ports)) != sizeof(ports)) std::exit(1);
  while (true) ReceiveRaw(listener->get(), destination, bytes, options.streams);
}

double SendRaw(uint64_t bytes, Memory source, uint16_t port, int streams) {
  const SocketAddress address = ResolveAddress(absl::StrCat("127.0.0.1:", port))->front();
  std::vector<UniqueFd> fds;
  for (int i = 0; i < streams; ++i) fds.push_back(*ConnectSocket(address, absl::InfiniteFuture()));
  return GigabytesPerSecond(bytes, [&] {
    std::vector<std::thread> workers;
    for (int i = 0; i < streams; ++i) {
      workers.emplace_back([&, i] {
        const char* at = reinterpret_cast<const char*>(source.base) + bytes / streams * i;
        Check(
            WriteAll(fds[i].get(), absl::string_view(at, bytes / streams), absl::InfiniteFuture()));
        char acknowledged = 0;
        Check(ReadAll(fds[i].get(), &acknowledged, 1, absl::InfiniteFuture()));
      });
    }
    for (std::thread& worker : workers) worker.join();
  });
}

void BenchTcp(const Options& options, nlohmann::json& rows) {
  int ends[2];
  if (pipe(ends) != 0) Die(absl::InternalError("pipe"));
  const pid_t child = fork();
  if (child == 0) Serve(options, ends[1]);
  Ports ports;
  if (read(ends[0], &ports, sizeof(ports)) != sizeof(ports))
    Die(absl::InternalError("no receiver"));
  const uint64_t bytes = options.mib << 20;
  const Memory source = Allocate(bytes, 1);
  const uint64_t digest = DigestRange(0, absl::MakeSpan(source.base, bytes));
  FakeReceiveTable unused;
  TcpOptions tcp;
  tcp.node = "sender";
  tcp.io_threads = options.threads;
  tcp.streams = options.streams;
  tcp.table = &unused;
  absl::StatusOr<std::unique_ptr<TcpTransport>> transport = MakeTcpTransport(tcp);
  Check(transport.status());
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (const uint16_t port : {ports.plain, ports.verifying}) {
    auto endpoint = (*transport)
                        ->Connect({"receiver", 0, absl::StrCat("127.0.0.1:", port)},
                                  absl::Now() + absl::Seconds(10));
    Check(endpoint.status());
    endpoints.push_back(*std::move(endpoint));
  }
  for (const bool strided : {false, true}) {
    const Transfer transfer = MakeTransfer(strided ? 2 : 1, bytes, strided);
    const Contest contest = {
        strided ? "tcp, 4 KiB rows" : "tcp, contiguous",
        {{"plain send/recv", [&] { return SendRaw(bytes, source, ports.raw, options.streams); }},
         {"tcp, without digests", [&] { return Send(*endpoints[0], transfer, source, digest); }},
         {"tcp, with digests", [&] { return Send(*endpoints[1], transfer, source, digest); }}}};
    for (const auto& row : RunContest(contest, options)) rows.push_back(row);
  }
  kill(child, SIGTERM);
  waitpid(child, nullptr, 0);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Transports against plain memcpy and plain sockets");
  app.add_option("--mib", options.mib, "MiB a run; up to three times as much memory is used")
      ->check(CLI::Range(1, 65536));
  app.add_option("--threads", options.threads, "copying or I/O threads on each side")
      ->check(CLI::Range(1, 64));
  app.add_option("--streams", options.streams, "connections")->check(CLI::Range(1, 64));
  app.add_option("--runs", options.runs, "runs, of which the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--only", options.only, "local or tcp; both by default")
      ->check(CLI::IsMember({"local", "tcp"}));
  app.add_flag("--json", options.json, "print JSON");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json rows = nlohmann::json::array();
  // tcp first: it forks, which is for a process that has no threads yet.
  if (options.only != "local") BenchTcp(options, rows);
  if (options.only != "tcp") BenchLocal(options, rows);
  if (options.json) std::cout << rows.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) { return xfer::Main(argc, argv); }
