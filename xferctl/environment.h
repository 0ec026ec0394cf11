// Settings from the environment. A flag that was given wins over its variable; a variable that is
// set to "" counts as not set; a value that cannot be used is an error that names variable, value
// and what is accepted.
#ifndef XFER_XFERCTL_ENVIRONMENT_H_
#define XFER_XFERCTL_ENVIRONMENT_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace xfer {

// A variable's value; nullopt where it is not set. The seam that tests swap.
using GetEnv = std::function<std::optional<std::string>(const char* name)>;
// The process's own environment. Not safe while another thread changes it, which xferctl never
// does.
std::optional<std::string> ProcessEnv(const char* name);

// The errors are usage errors (exit.h).
absl::StatusOr<std::string> StringSetting(const std::optional<std::string>& flag,
                                          const char* variable, const std::string& fallback,
                                          const GetEnv& env);
// 0 or 1.
absl::StatusOr<bool> BoolSetting(const std::optional<bool>& flag, const char* variable,
                                 bool fallback, const GetEnv& env);
// A finite number above 0 and at most `largest`. nullopt where neither flag nor variable is given.
absl::StatusOr<std::optional<double>> PositiveSetting(const std::optional<double>& flag,
                                                      const char* flag_name, const char* variable,
                                                      double largest, const GetEnv& env);

}  // namespace xfer

#endif  // XFER_XFERCTL_ENVIRONMENT_H_
