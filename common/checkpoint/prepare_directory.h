// The output directory of a preparation: who owns it, what may be removed from it, and whether
// there is room.
#ifndef XFER_COMMON_CHECKPOINT_PREPARE_DIRECTORY_H_
#define XFER_COMMON_CHECKPOINT_PREPARE_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace xfer {

// Holds the directory's lock while it lives. Not thread-safe.
class PrepareDirectory {
 public:
  // Makes the directory where it is missing. Aborted where another process prepares it.
  static absl::StatusOr<std::unique_ptr<PrepareDirectory>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string hf() const { return path_ + "/hf"; }
  std::string train() const { return path_ + "/train"; }

  // AlreadyExists where hf/ or train/ hold files, but neither record nor mark says that a
  // preparation made them.
  absl::Status CheckOwned() const;
  // ResourceExhausted where fewer than `bytes` are free, counting what Begin() would remove.
  absl::Status CheckSpace(uint64_t bytes) const;

  // Marks the directory as being prepared, removes the record and every file of an earlier run, and
  // makes hf/ and train/.
  absl::Status Begin();
  // Writes the record, then removes the mark.
  absl::Status Finish(const std::string& record);
  // After a failure: removes what was written since Begin(), and the mark.
  void Abandon();

 private:
  explicit PrepareDirectory(std::string path) : path_(std::move(path)) {}
  std::string mark() const { return path_ + "/preparing"; }
  absl::Status Clean();

  std::string path_;
  UniqueFd lock_;
};

}  // namespace xfer

#endif  // XFER_COMMON_CHECKPOINT_PREPARE_DIRECTORY_H_
