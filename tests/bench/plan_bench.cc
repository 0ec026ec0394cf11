// Times BuildPlan() over presets at true size, and over growing worlds to show that its cost is
// linear.
//
//   plan_bench [MODEL ...]     all presets and the growth series where no model is named
//
// Prints medians; "ns/transfer" staying level is what linear cost looks like.
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "common/plan/spec_plan.h"

namespace xfer {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t HeapBytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

void PrintHead() {
  std::printf("%-34s %8s %8s %10s %9s %9s %11s %9s %8s %7s\n", "world", "sources", "dests",
              "transfers", "copies", "input ms", "plan ms", "ns/trans", "plan MB", "ratio");
}

// Plans `spec` until a second is spent, at least three times, and prints a line.
bool Measure(const std::string& label, const ModelSpec& spec) {
  const double start = Seconds();
  absl::StatusOr<SpecPlanInput> input = PlanInputFromSpec(spec);
  const double made = Seconds() - start;
  if (!input.ok()) {
    std::fprintf(stderr, "%s: %s\n", label.c_str(), input.status().ToString().c_str());
    return false;
  }
  std::vector<double> times;
  size_t transfers = 0;
  size_t copies = 0;
  uint64_t bytes = 0;
  double ratio = 0;
  for (double spent = 0; times.size() < 3 || (spent < 1 && times.size() < 50);) {
    const uint64_t before = HeapBytes();
    const double begin = Seconds();
    absl::StatusOr<Plan> plan = BuildPlan(input->input);
    times.push_back(Seconds() - begin);
    spent += times.back();
    if (!plan.ok()) {
      std::fprintf(stderr, "%s: %s\n", label.c_str(), plan.status().ToString().c_str());
      return false;
    }
    bytes = HeapBytes() - before;
    transfers = plan->transfers.size();
    copies = 0;
    for (const Transfer& transfer : plan->transfers) copies += transfer.copies.size();
    ratio = plan->stats.ratio();
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  std::printf("%-34s %8zu %8zu %10zu %9zu %9.1f %11.2f %9.0f %8.1f %7.3f\n", label.c_str(),
              input->input.sources.size(), input->input.destinations.size(), transfers, copies,
              made * 1e3, median * 1e3, median * 1e9 / static_cast<double>(transfers),
              static_cast<double>(bytes) / 1e6, ratio);
  std::fflush(stdout);
  return true;
}

// One preset with more and more engines, or pipeline and expert ranks.
bool MeasureGrowth() {
  absl::StatusOr<ModelSpec> qwen = FindPreset("Qwen3-4B");
  absl::StatusOr<ModelSpec> moe = FindPreset("Qwen3-30B-A3B");
  if (!qwen.ok() || !moe.ok()) return false;
  bool ok = true;
  for (int engines : {1, 4, 16, 64, 256}) {
    ModelSpec spec = *qwen;
    spec.rollout.world = engines * spec.rollout.gpus_per_engine;
    spec.nodes = 1 + (spec.rollout.world + 7) / 8;
    ok &= Measure("Qwen3-4B, engines " + std::to_string(engines), spec);
  }
  for (int pp : {1, 2, 4, 8}) {
    ModelSpec spec = *qwen;
    spec.train.pp = pp;
    spec.train.world = 4 * pp;
    spec.train.last_stage_layers = pp == 8 ? std::optional<int32_t>(1) : std::nullopt;
    spec.nodes = 1 + (spec.train.world + 7) / 8;
    ok &= Measure("Qwen3-4B, PP " + std::to_string(pp), spec);
  }
  for (int ep : {1, 2, 4, 8, 16, 32}) {
    ModelSpec spec = *moe;
    spec.train.ep = ep;
    spec.train.world = std::max(32, ep * spec.train.pp);
    spec.nodes = spec.train.world / 8 + (spec.rollout.world + 7) / 8;
    ok &= Measure("Qwen3-30B-A3B, EP " + std::to_string(ep), spec);
  }
  return ok;
}

int Main(int argc, char** argv) {
  PrintHead();
  bool ok = true;
  for (int i = 1; i < argc; ++i) {
    absl::StatusOr<ModelSpec> spec = FindPreset(argv[i]);
    if (!spec.ok()) {
      std::fprintf(stderr, "%s\n", spec.status().ToString().c_str());
      return 2;
    }
    ok &= Measure(spec->name, *spec);
  }
  if (argc == 1) {
    for (const ModelSpec& spec : Presets()) ok &= Measure(spec.name, spec);
    ok &= MeasureGrowth();
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("peak memory of the process: %.0f MB\n", static_cast<double>(usage.ru_maxrss) / 1e3);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) { return xfer::Main(argc, argv); }
