#include "xferctl/environment.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "xferctl/exit.h"

namespace xfer {
namespace {

std::optional<std::string> NonEmpty(const char* variable, const GetEnv& env) {
  std::optional<std::string> value = env(variable);
  if (value.has_value() && value->empty()) return std::nullopt;
  return value;
}

bool IsPositive(double value, double largest) {
  return std::isfinite(value) && value > 0 && value <= largest;
}

}  // namespace

std::optional<std::string> ProcessEnv(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<std::string> StringSetting(const std::optional<std::string>& flag,
                                          const char* variable, const std::string& fallback,
                                          const GetEnv& env) {
  if (flag.has_value()) return *flag;
  return NonEmpty(variable, env).value_or(fallback);
}

absl::StatusOr<bool> BoolSetting(const std::optional<bool>& flag, const char* variable,
                                 bool fallback, const GetEnv& env) {
  if (flag.has_value()) return *flag;
  const std::optional<std::string> value = NonEmpty(variable, env);
  if (!value.has_value()) return fallback;
  if (*value == "0") return false;
  if (*value == "1") return true;
  return UsageError(
      absl::StrCat("environment variable ", variable, " is \"", *value, "\"; it must be 0 or 1"));
}

absl::StatusOr<std::optional<double>> PositiveSetting(const std::optional<double>& flag,
                                                      const char* flag_name, const char* variable,
                                                      double largest, const GetEnv& env) {
  const std::string accepted = absl::StrCat("it must be a number above 0 and at most ", largest);
  if (flag.has_value()) {
    if (IsPositive(*flag, largest)) return flag;
    return UsageError(absl::StrCat(flag_name, " is ", *flag, "; ", accepted));
  }
  const std::optional<std::string> text = NonEmpty(variable, env);
  if (!text.has_value()) return std::optional<double>();
  double value = 0;
  if (absl::SimpleAtod(*text, &value) && IsPositive(value, largest))
    return std::optional<double>(value);
  return UsageError(
      absl::StrCat("environment variable ", variable, " is \"", *text, "\"; ", accepted));
}

}  // namespace xfer
