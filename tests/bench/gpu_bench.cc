// gpu_bench: the GPU code against cudaMemcpyAsync over the same bytes, in one run. Prints a table;
// rates are bytes read plus bytes written, the copy's own included. Medians of kRounds rounds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "agent/gpu/gpu.h"

namespace xfer {
namespace {

constexpr uint64_t kBytes = uint64_t{2} << 30;
constexpr int kRounds = 15;

double Seconds(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < kRounds + 2; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= 2) times.push_back(took.count());  // the first ones make what later ones use again
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

void Must(bool good, const std::string& what) {
  if (good) return;
  fprintf(stderr, "gpu_bench: %s\n", what.c_str());
  exit(1);
}

// Rows of `run` bytes, `stride` apart at the source, one behind the other at the destination.
Transfer Rows(uint64_t run, uint64_t stride) {
  Transfer transfer;
  const uint64_t rows = kBytes / stride;
  Copy& copy = transfer.copies.emplace_back();
  copy.run = run;
  copy.levels = {{rows, static_cast<int64_t>(stride), static_cast<int64_t>(run)}};
  transfer.bytes = run * rows;
  return transfer;
}

int Main() {
  auto system = OpenGpus(GpuOptions());
  Must(system.ok(), std::string(system.status().message()));
  Gpu* const gpu = (*system)->gpu(0);
  void* a = nullptr;
  void* b = nullptr;
  Must(cudaMalloc(&a, kBytes) == cudaSuccess && cudaMalloc(&b, kBytes) == cudaSuccess, "no memory");
  Must(cudaMemset(a, 7, kBytes) == cudaSuccess && cudaMemset(b, 1, kBytes) == cudaSuccess,
       "memset");
  cudaStream_t stream = nullptr;
  Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
  const double raw =
      2.0 * kBytes / Seconds([&] {
        Must(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess,
             "copy");
        Must(cudaStreamSynchronize(stream) == cudaSuccess, "wait");
      });
  printf("%s, %llu bytes\n%-44s %10s %6s\n", gpu->info().name.c_str(),
         static_cast<unsigned long long>(kBytes), "", "GB/s", "ratio");
  const auto row = [raw](const char* name, double rate) {
    printf("%-44s %10.0f %6.2f\n", name, rate / 1e9, rate / raw);
  };
  row("cudaMemcpyAsync device to device", raw);
  auto* const from = static_cast<std::byte*>(a);
  auto* const to = static_cast<std::byte*>(b);
  Transfer whole;
  whole.copies.emplace_back().run = kBytes;
  whole.bytes = kBytes;
  const auto copy = [&](const Transfer& transfer) {
    return 2.0 * transfer.bytes / Seconds([&] {
             Must(GpuCopy(transfer, {from, gpu}, transfer, {to, gpu}, 0, transfer.bytes).ok(),
                  "GpuCopy");
           });
  };
  const auto digest = [&](const Transfer& transfer) {
    return 1.0 * transfer.bytes / Seconds([&] {
             Must(gpu->Digest(transfer, true, from, 0, transfer.bytes).ok(), "Digest");
           });
  };
  row("copy, one run", copy(whole));
  for (const uint64_t run : {uint64_t{4096}, uint64_t{2048}, uint64_t{1024}, uint64_t{256}}) {
    row(("pack, runs of " + std::to_string(run) + " of " + std::to_string(2 * run)).c_str(),
        copy(Rows(run, 2 * run)));
  }
  row("digest, one run", digest(whole));
  for (const uint64_t run : {uint64_t{4096}, uint64_t{1024}}) {
    row(("digest, runs of " + std::to_string(run) + " of " + std::to_string(2 * run)).c_str(),
        digest(Rows(run, 2 * run)));
  }
  return 0;
}

}  // namespace
}  // namespace xfer

int main() { return xfer::Main(); }
