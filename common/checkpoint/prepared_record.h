// prepared.json: what a finished preparation was made from and which files it has. It is written
// last, so a directory with a record that matches its files is a finished one.
#ifndef XFER_COMMON_CHECKPOINT_PREPARED_RECORD_H_
#define XFER_COMMON_CHECKPOINT_PREPARED_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model.h"

namespace xfer {

inline constexpr char kRecordName[] = "prepared.json";

// A file as the record knows it.
struct RecordedFile {
  std::string path;  // below the prepared directory; of a source file: its name
  uint64_t bytes = 0;
  std::string
      digest;  // of a safetensors file's header, of any other file whole; source files: empty
  int64_t mtime_ns = 0;  // source files only
  friend bool operator==(const RecordedFile&, const RecordedFile&) = default;
};

// A given Hugging Face directory.
struct RecordedSource {
  std::string directory;  // canonical
  std::vector<RecordedFile> files;
  friend bool operator==(const RecordedSource&, const RecordedSource&) = default;
};

struct PreparedRecord {
  // What was asked for.
  std::string spec;                      // ToJson(ModelSpec)
  std::string layouts;                   // digest over the training ranks' layouts
  std::optional<uint64_t> seed;          // of synthesised values
  std::optional<RecordedSource> source;  // of given values
  bool cut = false;                      // the source's first layers only
  // What was made.
  std::vector<RecordedFile> files;
  std::vector<std::string> shards;  // paths by rank, below the directory

  // Whether weights stand in the directory's own hf/ and not in the source's.
  bool own_hf() const { return !source.has_value() || cut; }
};

std::string ToJson(const PreparedRecord& record);
// InvalidArgument for another format or damage.
absl::StatusOr<PreparedRecord> ParsePreparedRecord(absl::string_view json);

// The record of a directory; NotFound where there is none.
absl::StatusOr<PreparedRecord> ReadPreparedRecord(const std::string& directory);

// Describes `directory`/`path` as it is on disk.
absl::StatusOr<RecordedFile> DescribeFile(const std::string& directory, const std::string& path);
// Describes a Hugging Face directory: config.json and the files that hold its tensors.
absl::StatusOr<RecordedSource> DescribeSource(const std::string& directory,
                                              const std::vector<std::string>& files);

// OK where every file of the record, and of its source, is on disk as recorded; FailedPrecondition
// names the first that is not. Reads sizes, times and headers, not the data.
absl::Status VerifyFiles(const std::string& directory, const PreparedRecord& record);

// OK where both records ask for the same; FailedPrecondition names what differs.
absl::Status SameRequest(const PreparedRecord& a, const PreparedRecord& b);

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_PREPARED_RECORD_H_
