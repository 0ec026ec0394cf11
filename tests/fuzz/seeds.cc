#include "tests/fuzz/seeds.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace xfer::fuzz {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace xfer::fuzz

// Called by libFuzzer before it reads its corpus. XFER_FUZZ_SEEDS names the directory to write to.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const char* directory = std::getenv("XFER_FUZZ_SEEDS");
  if (directory == nullptr) return 0;
  std::filesystem::create_directories(directory);
  int number = 0;
  for (const std::string& seed : xfer::fuzz::Seeds()) {
    std::ofstream(absl::StrCat(directory, "/seed-", number++), std::ios::binary) << seed;
  }
  return 0;
}
