// Names that are safe in directories, addresses and messages.
#ifndef XFER_COMMON_BASE_PLAIN_NAME_H_
#define XFER_COMMON_BASE_PLAIN_NAME_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace xfer {

inline constexpr size_t kMaxPlainName = 64;  // bytes

// Whether `name` is 1 to kMaxPlainName letters, digits, '.', '_' and '-'.
inline bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxPlainName &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace xfer

#endif  // XFER_COMMON_BASE_PLAIN_NAME_H_
