// The work behind `xferctl prepare`: from a model to the files that a job's training ranks start
// from.
//
// A prepared directory has
//   hf/          config.json and safetensors files, where the values are synthesised or cut
//   train/       rank-00000.safetensors ..., each training rank's Megatron tensors; ranks with
//   equal
//                content are hard links of one file
//   prepared.json  written last: the directory is finished if and only if it is there and fits the
//   files
#ifndef XFER_COMMON_CHECKPOINT_PREPARE_H_
#define XFER_COMMON_CHECKPOINT_PREPARE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model.h"

namespace xfer {

struct PrepareOptions {
  ModelSpec spec;           // already cut or shrunk
  std::string hf_dir;       // a Hugging Face directory of the model; empty with `synthesize`
  bool synthesize = false;  // values follow from `seed`
  bool cut =
      false;  // `spec` keeps the first layers only of the model in `hf_dir`; they are copied to hf/
  bool tiny = false;    // `spec` is shrunk; refused with `hf_dir`
  std::string out_dir;  // made where it is missing
  uint64_t seed = 0;
  // Called now and then, from any thread but one at a time: bytes written, of how many, and which
  // file.
  std::function<void(uint64_t done, uint64_t total, absl::string_view file)> progress;
  int threads = 0;                             // 0: one a core, at most 16
  uint64_t max_hf_file_bytes = 4'000'000'000;  // of tensors
};

// A finished directory.
struct Prepared {
  ModelSpec spec;
  bool synthesized = false;
  uint64_t seed = 0;                // where synthesised
  std::string hf_dir;               // the given one, or hf/
  std::vector<std::string> shards;  // path by training rank
};

struct PrepareResult {
  Prepared prepared;
  bool already_done = false;  // recognised, nothing was written
  std::string reason;         // why it was not recognised; empty where it was
  uint64_t bytes_written = 0;
};

// Prepares `out_dir`, or recognises that it is. What an interrupted or different run left there is
// replaced; a failed run removes what it wrote. Errors: InvalidArgument (options, a source that is
// not the model), ResourceExhausted (names path, bytes needed and free; found before anything is
// written or removed), AlreadyExists (hf/ or train/ hold files that no preparation made), Aborted
// (another one is running there).
absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options);

// Opens what Prepare() made; FailedPrecondition or NotFound names the remedy where it is missing,
// unfinished or damaged.
absl::StatusOr<Prepared> OpenPrepared(const std::string& directory);

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_PREPARE_H_
