// Helpers for absl::Status: early return and added context. xfer has no other error system.
#ifndef XFER_COMMON_BASE_STATUS_H_
#define XFER_COMMON_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace xfer {

// The same code, with "context: " before the message. OK stays OK.
[[nodiscard]] absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace xfer

#define XFER_CONCAT_INNER_(a, b) a##b
#define XFER_CONCAT_(a, b) XFER_CONCAT_INNER_(a, b)

// Returns from the enclosing function if `expr` (an absl::Status) is not OK.
#define XFER_RETURN_IF_ERROR(expr)                                                   \
  do {                                                                               \
    if (absl::Status xfer_status_ = (expr); !xfer_status_.ok()) return xfer_status_; \
  } while (false)

// XFER_ASSIGN_OR_RETURN(auto x, F()): x is F()'s value, or F()'s status is returned.
#define XFER_ASSIGN_OR_RETURN(lhs, expr) \
  XFER_ASSIGN_OR_RETURN_IMPL_(XFER_CONCAT_(xfer_status_or_, __LINE__), lhs, expr)
#define XFER_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = *std::move(tmp)

#endif  // XFER_COMMON_BASE_STATUS_H_
