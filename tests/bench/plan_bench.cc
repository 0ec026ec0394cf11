// Times BuildPlan() over presets at true size, and over growing worlds to show that its cost is
// linear.
//
//   plan_bench                 all presets, then the growth series
//   plan_bench --growth        the growth series alone
//   plan_bench MODEL ...       these presets
//
// Prints medians of processor time. "ns/piece" (of sources and destinations) staying level is what
// linear cost looks like; a series ends with how pieces, transfers and time have grown in it.
#include <malloc.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/spec_plan.h"

namespace xfer {
namespace {

// Processor time: planning has one thread, and the machine may have other work.
double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

uint64_t HeapBytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

void PrintHead() {
  std::printf("%-34s %8s %8s %10s %9s %9s %11s %9s %8s %7s\n", "world", "sources", "dests",
              "transfers", "copies", "input ms", "plan ms", "ns/piece", "plan MB", "ratio");
}

struct Cost {
  size_t pieces = 0;     // of sources and destinations
  size_t transfers = 0;  // pieces that they have in common
  double seconds = 0;
};

// Plans `spec` until a second is spent, at least three times, and prints a line. Nothing where it
// cannot be planned, which is printed too.
std::optional<Cost> Measure(const std::string& label, const ModelSpec& spec,
                            FanOut fan_out = FanOut::kNone) {
  const double start = Seconds();
  absl::StatusOr<SpecPlanInput> input = PlanInputFromSpec(spec);
  const double made = Seconds() - start;
  if (!input.ok()) {
    std::fprintf(stderr, "%s: %s\n", label.c_str(), input.status().ToString().c_str());
    return std::nullopt;
  }
  input->input.fan_out = fan_out;
  std::vector<double> times;
  size_t transfers = 0;
  size_t copies = 0;
  uint64_t bytes = 0;
  double ratio = 0;
  size_t pieces = 0;
  for (const RankManifest& rank : input->input.sources) pieces += rank.manifest->pieces.size();
  for (const RankManifest& rank : input->input.destinations) pieces += rank.manifest->pieces.size();
  for (double spent = 0; times.size() < 3 || (spent < 1 && times.size() < 50);) {
    const uint64_t before = HeapBytes();
    const double begin = Seconds();
    absl::StatusOr<Plan> plan = BuildPlan(input->input);
    times.push_back(Seconds() - begin);
    spent += times.back();
    if (!plan.ok()) {
      std::fprintf(stderr, "%s: %s\n", label.c_str(), plan.status().ToString().c_str());
      return std::nullopt;
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
              made * 1e3, median * 1e3, median * 1e9 / static_cast<double>(pieces),
              static_cast<double>(bytes) / 1e6, ratio);
  std::fflush(stdout);
  return Cost{pieces, transfers, median};
}

// A preset with each kind of fan-out.
bool MeasureFanOut(const ModelSpec& spec) {
  bool ok = Measure(spec.name, spec).has_value();
  ok &= Measure("  in the node", spec, FanOut::kNode).has_value();
  ok &= Measure("  and between nodes", spec, FanOut::kRelay).has_value();
  return ok;
}

// Worlds of one kind that grow, and how their cost does.
class Series {
 public:
  void Add(const std::string& label, const ModelSpec& spec) {
    const std::optional<Cost> cost = Measure(label, spec);
    ok_ &= cost.has_value();
    if (cost.has_value()) costs_.push_back(*cost);
  }
  bool End() const {
    if (!ok_) return false;
    const auto grown = [this](auto field) {
      return static_cast<double>(costs_.back().*field) / static_cast<double>(costs_.front().*field);
    };
    std::printf("  %.1f times the pieces, %.1f times the transfers, %.1f times the time\n",
                grown(&Cost::pieces), grown(&Cost::transfers), grown(&Cost::seconds));
    return true;
  }

 private:
  std::vector<Cost> costs_;
  bool ok_ = true;
};

// One preset with more and more engines, or pipeline and expert ranks.
bool MeasureGrowth() {
  absl::StatusOr<ModelSpec> qwen = FindPreset("Qwen3-4B");
  absl::StatusOr<ModelSpec> moe = FindPreset("Qwen3-30B-A3B");
  if (!qwen.ok() || !moe.ok()) return false;
  Series by_engines;
  for (int engines : {4, 16, 64, 256}) {
    ModelSpec spec = *qwen;
    spec.rollout.world = engines * spec.rollout.gpus_per_engine;
    spec.nodes = 1 + (spec.rollout.world + 7) / 8;
    by_engines.Add("Qwen3-4B, engines " + std::to_string(engines), spec);
  }
  bool ok = by_engines.End();
  // Stages of equally many layers, so that more of them make a deeper model.
  Series by_pp;
  for (int pp : {1, 2, 4, 8}) {
    ModelSpec spec = *moe;
    absl::StatusOr<HfConfig> config = KeepLayers(moe->config, 6 * pp);
    if (!config.ok()) return false;
    spec.config = *std::move(config);
    spec.train.pp = pp;
    spec.train.world = moe->train.world * pp;
    spec.nodes = spec.train.world / 8 + (spec.rollout.world + 7) / 8;
    by_pp.Add("Qwen3-30B-A3B, PP " + std::to_string(pp), spec);
  }
  ok &= by_pp.End();
  Series by_ep;
  for (int ep : {8, 16, 32, 64, 128}) {
    ModelSpec spec = *moe;
    spec.train.ep = ep;
    spec.train.world = 4 * ep;
    spec.nodes = spec.train.world / 8 + (spec.rollout.world + 7) / 8;
    by_ep.Add("Qwen3-30B-A3B, EP " + std::to_string(ep), spec);
  }
  ok &= by_ep.End();
  return ok;
}

int Main(int argc, char** argv) {
  PrintHead();
  bool ok = true;
  const bool growth_alone = argc == 2 && std::string(argv[1]) == "--growth";
  for (int i = 1; i < argc && !growth_alone; ++i) {
    absl::StatusOr<ModelSpec> spec = FindPreset(argv[i]);
    if (!spec.ok()) {
      std::fprintf(stderr, "%s\n", spec.status().ToString().c_str());
      return 2;
    }
    ok &= MeasureFanOut(*spec);
  }
  if (argc == 1) {
    for (const ModelSpec& spec : Presets()) ok &= MeasureFanOut(spec);
  }
  if (argc == 1 || growth_alone) ok &= MeasureGrowth();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("peak memory of the process: %.0f MB\n", static_cast<double>(usage.ru_maxrss) / 1e3);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) { return xfer::Main(argc, argv); }
