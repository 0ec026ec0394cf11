#include "client/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace xfer {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// "" where it cannot be read.
std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

uint64_t ReadNumber(const std::string& path) {
  const std::string text = ReadSmallFile(path);
  uint64_t value = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &value) ? value : kUnknown;
}

// Reclaimable page cache of a control group: it counts as used there, but is given up on demand.
uint64_t InactiveFileBytes(const std::string& directory) {
  const std::string stat = ReadSmallFile(directory + "/memory.stat");
  for (absl::string_view line : absl::StrSplit(stat, '\n')) {
    uint64_t value = 0;
    if (absl::ConsumePrefix(&line, "inactive_file ") && absl::SimpleAtoi(line, &value))
      return value;
  }
  return 0;
}

// What is left in the control group (version 2) at `path` and in those around it.
uint64_t CgroupAvailable(std::string path) {
  uint64_t left = kUnknown;
  while (true) {
    const std::string directory = absl::StrCat("/sys/fs/cgroup", path);
    const uint64_t limit = ReadNumber(directory + "/memory.max");  // "max" is not a number
    const uint64_t used = ReadNumber(directory + "/memory.current");
    if (limit != kUnknown && used != kUnknown) {
      const uint64_t kept = used - std::min(used, InactiveFileBytes(directory));
      left = std::min(left, limit - std::min(limit, kept));
    }
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return left;
    path.resize(slash);
  }
}

std::string OwnCgroup() {
  const std::string text = ReadSmallFile("/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) return line == "/" ? std::string() : std::string(line);
  }
  return std::string();
}

}  // namespace

uint64_t ParseMemAvailable(absl::string_view meminfo) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    if (!absl::ConsumePrefix(&line, "MemAvailable:")) continue;
    line = absl::StripAsciiWhitespace(line);
    uint64_t kib = 0;
    if (absl::ConsumeSuffix(&line, " kB") && absl::SimpleAtoi(line, &kib)) return kib * 1024;
  }
  return kUnknown;
}

uint64_t AvailableMemoryBytes() {
  return std::min(ParseMemAvailable(ReadSmallFile("/proc/meminfo")), CgroupAvailable(OwnCgroup()));
}

}  // namespace xfer
