// The safetensors format (https://github.com/huggingface/safetensors, "Format"): 8 bytes of
// little-endian header length, a JSON header, then the tensors' bytes without gaps.
#ifndef XFER_COMMON_CHECKPOINT_SAFETENSORS_H_
#define XFER_COMMON_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/unique_fd.h"
#include "common/layout/box.h"
#include "common/model/dtype.h"

namespace xfer {

// A tensor of an open file; `data` is borrowed from the file's mapping, row-major.
struct TensorView {
  DType dtype;
  Dims shape;
  absl::Span<const std::byte> data;
};

// One mapped file. Reading is thread-safe. Every offset, length, shape and type of the header is
// checked when it is opened: a lying header is InvalidArgument and names file, tensor and value.
// The file must not be made shorter while it is open; a SafetensorsWriter replaces files and never
// does.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();

  // NotFound names file and tensor.
  absl::StatusOr<TensorView> Find(absl::string_view name) const;
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  SafetensorsFile() = default;
  std::string path_;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A checkpoint directory: model.safetensors, or the shards named by model.safetensors.index.json.
// Reading is thread-safe.
class Checkpoint {
 public:
  // Fails where a shard is missing, a tensor of the index is not in its shard, or one stands in
  // two.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);
  absl::StatusOr<TensorView> Find(absl::string_view name) const;
  // Sorted.
  std::vector<std::string> names() const;
  // Of its files, sorted.
  std::vector<std::string> paths() const;

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  absl::flat_hash_map<std::string, TensorView> tensors_;
};

// Writes one file. The header is made of all tensors first; then each tensor's bytes are written
// once, in any order and from any thread. The file has a temporary name until Finish(), which syncs
// and renames it, so a file under its own name is whole. An unfinished writer removes its file.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Dims shape;
  };
  // Reserves the file's size on disk, so that a full disk is found here: ResourceExhausted names
  // the path and the bytes needed.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<Entry> entries,
      const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();

  // The tensor's place in the file, mapped for writing; valid until Finish(). Row-major.
  absl::StatusOr<absl::Span<std::byte>> Data(absl::string_view name);
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;
  std::string path_, temporary_;
  UniqueFd fd_;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  absl::flat_hash_map<std::string, absl::Span<std::byte>> tensors_;
};

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_SAFETENSORS_H_
