// A model's spec, and a Hugging Face config.json, as people write them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/model.h"
#include "tests/fuzz/seeds.h"

namespace xfer::fuzz {

std::vector<std::string> Seeds() {
  std::vector<std::string> out;
  for (const ModelSpec& spec : Presets()) {
    // Small, so that an input takes little time.
    const auto small = Shrink(spec);
    if (small.ok()) out.push_back(ToJson(*small));
  }
  return out;
}

}  // namespace xfer::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  (void)xfer::ParseHfConfig(text);
  const auto spec = xfer::ParseModelSpec(text);
  if (!spec.ok()) return 0;
  const std::string json = xfer::ToJson(*spec);
  const auto again = xfer::ParseModelSpec(json);
  xfer::fuzz::Require(again.ok() && xfer::ToJson(*again) == json,
                      "a spec that was read is written and read again the same");
  (void)xfer::Validate(*spec);
  return 0;
}
