// The kernels on a real GPU, bit for bit against the CPU; skipped where there is none.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "agent/exec/conversion.h"
#include "agent/exec/transfer_digest.h"
#include "agent/gpu/gpu.h"
#include "agent/gpu/kernels.h"
#include "common/base/digest.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/gpu/strided_transfers.h"

namespace xfer {
namespace {

struct CudaFree {
  void operator()(std::byte* at) const { (void)cudaFree(at); }
};
using DeviceBytes = std::unique_ptr<std::byte, CudaFree>;

class GpuDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto system = OpenGpus(GpuOptions());
    if (!system.ok()) GTEST_SKIP() << system.status().message();
    system_ = *std::move(system);
    gpu_ = system_->gpu(0);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    for (uint64_t i = 0; i < noise_.size(); i += 8) {
      const uint64_t word = random_();
      std::memcpy(noise_.data() + i, &word, 8);
    }
  }

  static DeviceBytes Allocate(uint64_t bytes) {
    void* at = nullptr;
    EXPECT_EQ(cudaMalloc(&at, bytes), cudaSuccess);
    return DeviceBytes(static_cast<std::byte*>(at));
  }
  static DeviceBytes Upload(const std::vector<std::byte>& bytes) {
    DeviceBytes at = Allocate(bytes.size());
    EXPECT_EQ(cudaMemcpy(at.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
    return at;
  }
  static std::vector<std::byte> Download(const DeviceBytes& at, uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    EXPECT_EQ(cudaMemcpy(out.data(), at.get(), bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

  std::unique_ptr<GpuSystem> system_;
  Gpu* gpu_ = nullptr;
  std::mt19937_64 random_{5};
  std::vector<std::byte> noise_ = std::vector<std::byte>(kStridedRegionBytes);
};

// Ranges as executors cut them: at leaves.
std::vector<std::pair<uint64_t, uint64_t>> Ranges(uint64_t bytes) {
  const uint64_t middle = bytes / 2 / kDigestLeafBytes * kDigestLeafBytes;
  return {{0, bytes}, {0, middle}, {middle, bytes}};
}

TEST_F(GpuDeviceTest, CopiesEveryForm) {
  const DeviceBytes source = Upload(noise_);
  for (const StridedCase& test : StridedCases()) {
    for (const auto& [begin, end] : Ranges(test.transfer.bytes)) {
      if (begin == end) continue;
      std::vector<std::byte> expected(kStridedRegionBytes);
      std::vector<std::byte> stream;
      ForEachRun(test.transfer, begin, end, [&](uint64_t from, uint64_t to, uint64_t bytes) {
        std::memcpy(expected.data() + to, noise_.data() + from, bytes);
        stream.insert(stream.end(), noise_.begin() + from, noise_.begin() + from + bytes);
      });
      const DeviceBytes destination = Upload(std::vector<std::byte>(kStridedRegionBytes));
      ASSERT_TRUE(GpuCopy(test.transfer, {source.get(), gpu_}, test.transfer,
                          {destination.get(), gpu_}, begin, end)
                      .ok());
      EXPECT_TRUE(Download(destination, kStridedRegionBytes) == expected)
          << test.name << " between GPU and GPU";

      std::vector<std::byte> host(kStridedRegionBytes);
      ASSERT_TRUE(GpuCopy(test.transfer, {source.get(), gpu_}, test.transfer,
                          {host.data(), nullptr}, begin, end)
                      .ok());
      EXPECT_TRUE(host == expected) << test.name << " to the host";

      const DeviceBytes again = Upload(std::vector<std::byte>(kStridedRegionBytes));
      ASSERT_TRUE(GpuCopy(test.transfer, {noise_.data(), nullptr}, test.transfer,
                          {again.get(), gpu_}, begin, end)
                      .ok());
      EXPECT_TRUE(Download(again, kStridedRegionBytes) == expected)
          << test.name << " from the host";

      auto packed = gpu_->Staging(end - begin);
      ASSERT_TRUE(packed.ok()) << packed.status();
      ASSERT_TRUE(gpu_->Pack(test.transfer, source.get(), begin, end, packed->get()).ok());
      EXPECT_EQ(std::memcmp(packed->get(), stream.data(), stream.size()), 0)
          << test.name << " packed";
    }
  }
}

TEST_F(GpuDeviceTest, DigestsBothSides) {
  const DeviceBytes memory = Upload(noise_);
  for (const StridedCase& test : StridedCases()) {
    for (const auto& [begin, end] : Ranges(test.transfer.bytes)) {
      if (begin == end) continue;
      for (const bool source : {true, false}) {
        const auto digest = gpu_->Digest(test.transfer, source, memory.get(), begin, end);
        ASSERT_TRUE(digest.ok()) << digest.status();
        EXPECT_EQ(*digest,
                  DigestOfTransfer(test.transfer,
                                   source ? TransferSide::kSource : TransferSide::kDestination,
                                   noise_.data(), begin, end))
            << test.name << (source ? " source" : " destination") << " from " << begin;
      }
    }
  }
}

TEST_F(GpuDeviceTest, ConvertsAsTheCpuDoes) {
  const DeviceBytes source = Upload(noise_);
  for (const auto& [from, to] : std::vector<std::pair<DType, DType>>{{DType::kBF16, DType::kF32},
                                                                     {DType::kF16, DType::kF32},
                                                                     {DType::kF32, DType::kBF16},
                                                                     {DType::kF32, DType::kF16}}) {
    const auto from_bytes = static_cast<uint64_t>(SizeOf(from));
    const auto to_bytes = static_cast<uint64_t>(SizeOf(to));
    Transfer transfer = TransferOf(
        {{from_bytes,
          0,
          96 * to_bytes,
          {{3000, static_cast<int64_t>(200 * from_bytes), static_cast<int64_t>(96 * to_bytes)}}}});
    transfer.conversion = {from, to};
    const auto converted = SplitConversion(transfer);
    ASSERT_TRUE(converted.ok()) << converted.status();
    std::vector<std::byte> expected(transfer.bytes);
    ConvertRange(transfer, **converted, noise_.data(), 0, transfer.bytes, absl::MakeSpan(expected));
    auto out = gpu_->Staging(transfer.bytes);
    ASSERT_TRUE(out.ok()) << out.status();
    ASSERT_TRUE(gpu_->Convert((*converted)->gather, from, to, source.get(), 0,
                              (*converted)->gather.bytes, out->get())
                    .ok());
    EXPECT_EQ(std::memcmp(out->get(), expected.data(), expected.size()), 0)
        << Name(from) << " to " << Name(to);
  }
}

TEST_F(GpuDeviceTest, ServesManyThreadsAtOnce) {
  const DeviceBytes memory = Upload(noise_);
  const std::vector<StridedCase> cases = StridedCases();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        for (const StridedCase& test : cases) {
          const auto digest =
              gpu_->Digest(test.transfer, true, memory.get(), 0, test.transfer.bytes);
          ASSERT_TRUE(digest.ok()) << digest.status();
          ASSERT_EQ(*digest, DigestOfTransfer(test.transfer, TransferSide::kSource, noise_.data(),
                                              0, test.transfer.bytes));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GpuDeviceTest, RefusesStagingBeyondItsLimit) {
  auto system = OpenGpus({.staging_bytes = 1 << 20});
  ASSERT_TRUE(system.ok());
  auto first = (*system)->gpu(0)->Staging(1 << 20);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsResourceExhausted((*system)->gpu(0)->Staging(4096).status()));
  first->reset();
  EXPECT_TRUE((*system)->gpu(0)->Staging(4096).ok());
}

}  // namespace
}  // namespace xfer
