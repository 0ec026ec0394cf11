// Transfers as planners lower them, for tests of the GPU code and of its twins.
#ifndef XFER_TESTS_UNIT_AGENT_GPU_STRIDED_TRANSFERS_H_
#define XFER_TESTS_UNIT_AGENT_GPU_STRIDED_TRANSFERS_H_

#include <cstdint>
#include <vector>

#include "common/plan/plan.h"

namespace xfer {

struct StridedCase {
  const char* name;
  Transfer transfer;
};

inline Transfer TransferOf(std::vector<Copy> copies) {
  Transfer transfer;
  transfer.copies = std::move(copies);
  for (const Copy& copy : transfer.copies) transfer.bytes += copy.bytes();
  return transfer;
}

// All offsets stay below 8 MiB on both sides.
inline std::vector<StridedCase> StridedCases() {
  std::vector<StridedCase> cases;
  cases.push_back({"one run", TransferOf({{256, 512, 3'000'000, {}}})});
  cases.push_back({"one run, odd", TransferOf({{257, 513, 1'000'003, {}}})});
  cases.push_back({"rows of a half", TransferOf({{4096, 0, 4096, {{300, 8192, 4096}}}})});
  cases.push_back({"short rows", TransferOf({{64, 32, 192, {{5000, 400, 192}}}})});
  cases.push_back({"odd rows", TransferOf({{3, 5, 77, {{5000, 401, 79}}}})});
  cases.push_back(
      {"levels",
       TransferOf({{0, 16, 96, {{7, 900'000, 8'448}, {11, 12'000, 768}, {8, 128, 96}}}})});
  cases.push_back({"five levels", TransferOf({{0,
                                               0,
                                               48,
                                               {{2, 1 << 20, 2304},
                                                {2, 1 << 19, 1152},
                                                {2, 1 << 18, 576},
                                                {3, 1 << 14, 192},
                                                {4, 64, 48}}}})});
  Transfer several = TransferOf({{1 << 20, 0, 10'000, {}},
                                 {0, 20'000, 48, {{300, 96, 64}}},
                                 {2 << 20, 1 << 20, 40'960, {{20, 81'920, 40'960}}}});
  cases.push_back({"several copies", several});
  std::vector<Copy> many;
  for (uint64_t i = 0; i < 300; ++i) {
    Copy& copy = many.emplace_back();
    copy.source_offset = i * 8'000;
    copy.destination_offset = i * 5'000;
    copy.run = 4'992 - i % 3 * 16;
  }
  cases.push_back({"many copies", TransferOf(many)});
  return cases;
}

inline constexpr uint64_t kStridedRegionBytes = 8 << 20;

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_AGENT_GPU_STRIDED_TRANSFERS_H_
