// The files of presets/, as CMake put them into the program (see CMakeLists.txt).
#ifndef XFER_COMMON_MODEL_EMBEDDED_PRESETS_H_
#define XFER_COMMON_MODEL_EMBEDDED_PRESETS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace xfer {

struct EmbeddedPreset {
  absl::string_view file;  // its name, for messages
  absl::string_view json;
};
absl::Span<const EmbeddedPreset> EmbeddedPresets();

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_EMBEDDED_PRESETS_H_
