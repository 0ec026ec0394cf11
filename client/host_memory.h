// How much memory this process may still use.
#ifndef XFER_CLIENT_HOST_MEMORY_H_
#define XFER_CLIENT_HOST_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace xfer {

// Bytes: the smaller of the machine's MemAvailable and, inside a control group with a limit, what
// is left of that limit. UINT64_MAX where neither can be read. Thread-safe.
uint64_t AvailableMemoryBytes();

// MemAvailable of a text in the form of /proc/meminfo; UINT64_MAX where it is not there.
uint64_t ParseMemAvailable(absl::string_view meminfo);

}  // namespace xfer

#endif  // XFER_CLIENT_HOST_MEMORY_H_
