// A directory that goes away with the test.
#ifndef XFER_TESTS_UNIT_COMMON_CHECKPOINT_TEMP_DIR_H_
#define XFER_TESTS_UNIT_COMMON_CHECKPOINT_TEMP_DIR_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace xfer {

class TempDir {
 public:
  TempDir() {
    // In memory where there is room: what is tested syncs every file, and a busy disk takes its
    // time.
    std::error_code error;
    const auto shm = std::filesystem::space("/dev/shm", error);
    const bool in_memory = !error && shm.available > (uint64_t{64} << 20);
    std::string name = (in_memory ? "/dev/shm/" : ::testing::TempDir()) + "xfer_checkpoint_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void WriteRaw(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string ReadRaw(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace xfer

#endif  // XFER_TESTS_UNIT_COMMON_CHECKPOINT_TEMP_DIR_H_
