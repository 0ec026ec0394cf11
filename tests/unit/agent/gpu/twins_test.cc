// What the GPU's kernels compute, computed here: the same code, against the CPU's own.
#include <cstring>
#include <random>
#include <vector>

#include "agent/gpu/elements.h"
#include "agent/gpu/gpu.h"
#include "agent/gpu/strided.h"
#include "agent/gpu/xxh3_leaf.h"
#include "common/base/convert.h"
#include "common/base/digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/gpu/strided_transfers.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

TEST(GpuTwins, HashesALeafAsTheLibraryDoes) {
  std::mt19937_64 random(7);
  for (uint64_t leaf : {uint64_t{0}, uint64_t{1}, uint64_t{123'456'789}, ~uint64_t{0} - 1}) {
    std::vector<std::byte> bytes(kDigestLeafBytes);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    uint64_t folds = 0;
    for (uint32_t lane = 0; lane < gpu::kLeafLanes; ++lane) {
      folds += gpu::HashLane(gpu::KeysOfLane(lane), [&](uint32_t stripe) {
        gpu::LeafPair pair;
        std::memcpy(&pair, bytes.data() + stripe * gpu::kStripeBytes + lane * sizeof(pair),
                    sizeof(pair));
        return pair;
      });
    }
    EXPECT_EQ(gpu::FinishLeaf(leaf, folds), DigestLeaf(leaf, bytes)) << "leaf " << leaf;
  }
}

TEST(GpuTwins, ConvertsEveryHalf) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    for (const bool brain : {false, true}) {
      uint32_t expected = 0;
      ConvertRun(brain ? DType::kBF16 : DType::kF16, DType::kF32,
                 {reinterpret_cast<const std::byte*>(&half), 2},
                 {reinterpret_cast<std::byte*>(&expected), 4});
      ASSERT_EQ(brain ? gpu::F32FromBF16(half) : gpu::F32FromF16(half), expected)
          << brain << " " << bits;
    }
  }
}

TEST(GpuTwins, NarrowsAsTheCpuDoes) {
  std::mt19937 random(11);
  for (int i = 0; i < 4'000'000; ++i) {
    uint32_t bits = random();
    // Half of them near what F16 can hold, where rounding has its corners.
    if (i % 2 == 0) bits = (bits & 0x80ff'ffffu) | (100u + (bits >> 25) % 46u) << 23;
    if (i % 8 == 0) bits &= 0xffff'f000u;
    for (const bool brain : {false, true}) {
      uint16_t expected = 0;
      ConvertRun(DType::kF32, brain ? DType::kBF16 : DType::kF16,
                 {reinterpret_cast<const std::byte*>(&bits), 4},
                 {reinterpret_cast<std::byte*>(&expected), 2});
      ASSERT_EQ(brain ? gpu::BF16FromF32(bits) : gpu::F16FromF32(bits), expected)
          << brain << " " << bits;
    }
  }
}

TEST(GpuTwins, FindsEveryRun) {
  for (const StridedCase& test : StridedCases()) {
    if (test.transfer.copies.front().levels.size() > gpu::kMaxLevels) continue;  // split up before
    std::vector<gpu::StridedCopy> table;
    uint64_t begin = 0;
    for (const Copy& copy : test.transfer.copies) {
      gpu::StridedCopy& out = table.emplace_back();
      out.begin = begin;
      out.source = copy.source_offset;
      out.destination = copy.destination_offset;
      out.run = copy.run;
      for (const CopyLevel& level : copy.levels) {
        out.count[out.levels] = level.count;
        out.source_stride[out.levels] = level.source_stride;
        out.destination_stride[out.levels++] = level.destination_stride;
      }
      begin += copy.bytes();
    }
    const gpu::StridedRange range{0, begin, static_cast<uint32_t>(table.size()), table.front(),
                                  table.data()};
    uint64_t at = 0;
    ForEachRun(test.transfer, 0, begin, [&](uint64_t source, uint64_t destination, uint64_t bytes) {
      for (uint64_t end = at + bytes; at < end; at += 7) {
        const uint64_t done = bytes - (end - at);
        const gpu::StridedPlace place = gpu::Locate(range, at);
        ASSERT_EQ(place.source, source + done) << test.name << " at " << at;
        ASSERT_EQ(place.destination, destination + done) << test.name << " at " << at;
        ASSERT_GT(place.left, 0u);
        if (end - at <= 7) {
          at = end;
          break;
        }
      }
    });
    EXPECT_EQ(at, begin) << test.name;
  }
}

GpuExport GoodExport() {
  GpuExport memory;
  memory.uuid = std::string(16, 'u');
  memory.ipc_handle = std::string(64, 'h');
  memory.bytes = 4096;
  return memory;
}

TEST(GpuExport, IsChecked) {
  EXPECT_TRUE(CheckGpuExport(GoodExport()).ok());
  GpuExport memory = GoodExport();
  memory.uuid = "short";
  EXPECT_THAT(CheckGpuExport(memory).message(), HasSubstr("UUID has 5 bytes"));
  memory = GoodExport();
  memory.ipc_handle.resize(63);
  EXPECT_THAT(CheckGpuExport(memory).message(), HasSubstr("IPC handle has 63 bytes"));
  memory = GoodExport();
  memory.offset = ~uint64_t{0} - 4095;
  EXPECT_THAT(CheckGpuExport(memory).message(), HasSubstr("beyond any memory's end"));
  memory = GoodExport();
  memory.bytes = 0;
  EXPECT_THAT(CheckGpuExport(memory).message(), HasSubstr("0 bytes"));
  memory = GoodExport();
  memory.segments.push_back({UniqueFd(), 8192});
  EXPECT_THAT(CheckGpuExport(memory).message(), HasSubstr("and a CUDA IPC handle as well"));
  memory.ipc_handle.clear();
  EXPECT_TRUE(CheckGpuExport(memory).ok());
  memory.offset = 4097;
  EXPECT_THAT(CheckGpuExport(memory).message(),
              HasSubstr("reaches beyond its segments of 8192 bytes"));
  memory.segments.push_back({UniqueFd(), ~uint64_t{0}});
  EXPECT_THAT(CheckGpuExport(memory).message(), HasSubstr("give its true size"));
}

TEST(GpuExport, ShowsUuidsAsNvidiaSmiDoes) {
  EXPECT_EQ(FormatUuid(std::string(
                "\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef", 16)),
            "GPU-01234567-89ab-cdef-0123-456789abcdef");
}

TEST(OpenGpus, SaysWhatIsMissingOrFindsGpus) {
  const auto gpus = OpenGpus(GpuOptions());
  if (gpus.ok()) {
    EXPECT_FALSE((*gpus)->gpus().empty());
    EXPECT_EQ((*gpus)->gpu(-1), nullptr);
  } else if (absl::IsUnimplemented(gpus.status())) {
    EXPECT_THAT(gpus.status().message(), HasSubstr("-DXFER_CUDA=ON"));
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(gpus.status())) << gpus.status();
    EXPECT_THAT(gpus.status().message(), HasSubstr("driver"));
  }
}

}  // namespace
}  // namespace xfer
