// What a coordinator must not forget: models that were added, jobs, what is known of their engines,
// and syncs. One SQLite file.
#ifndef XFER_COORDINATOR_STORE_STORE_H_
#define XFER_COORDINATOR_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/plan/plan.h"
#include "xfer/v1/coordinator.pb.h"

namespace SQLite {
class Database;
}

namespace xfer {

// A registration, without what it holds.
struct StoredRank {
  RankId id;
  std::string node;
  uint64_t incarnation = 0;
  uint64_t registration_id = 0;
  friend bool operator==(const StoredRank&, const StoredRank&) = default;
};

struct StoredEngine {
  int32_t engine = 0;
  int64_t version = 0;
  bool dirty = false;
  std::string dirty_reason;
  std::vector<StoredRank> ranks;  // the registrations whose memory has `version`
  friend bool operator==(const StoredEngine&, const StoredEngine&) = default;
};

struct StoredJob {
  v1::Job info;
  std::vector<StoredEngine> engines;  // those that were ever saved, in order
};

// Every Save returns when the file has it for good (WAL with synchronous=FULL), all of it or
// nothing. Thread-safe; calls take turns.
//
// Errors name the file: ResourceExhausted, the disk is full; FailedPrecondition, another process
// has it open, or it may not be written; DataLoss, it is damaged or no store (it is then left as it
// is); Internal, anything else.
class Store {
 public:
  // Opens or makes the file. An empty path is a store in memory, which ends with the process.
  // Also FailedPrecondition: a newer xfer wrote it.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path);
  ~Store();

  absl::StatusOr<std::vector<StoredJob>> Jobs() const ABSL_LOCKS_EXCLUDED(mu_);
  // The newest `limit` syncs, oldest first.
  absl::StatusOr<std::vector<v1::Sync>> Syncs(size_t limit) const ABSL_LOCKS_EXCLUDED(mu_);
  // Larger than the number of any sync that was ever saved, or said by SaveNextSyncId().
  absl::StatusOr<uint64_t> NextSyncId() const ABSL_LOCKS_EXCLUDED(mu_);

  // Those that were saved, sorted by name.
  absl::StatusOr<std::vector<v1::Model>> Models() const ABSL_LOCKS_EXCLUDED(mu_);

  // Adds or replaces a model.
  absl::Status SaveModel(const v1::Model& model) ABSL_LOCKS_EXCLUDED(mu_);
  // A new job in place of any that had its name; nothing is known of its engines.
  absl::Status ReplaceJob(const v1::Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  // NotFound: no such job.
  absl::Status UpdateJob(const v1::Job& job) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SaveEngines(const std::string& job, const std::vector<StoredEngine>& engines)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds or replaces a sync, and drops all but the newest `keep`.
  absl::Status SaveSync(const v1::Sync& sync, size_t keep) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SaveNextSyncId(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Store(std::string path, std::unique_ptr<SQLite::Database> database);
  // Runs `body` on the database; what it throws becomes a status that names the file and `what`.
  absl::Status Do(const char* what, const std::function<void(SQLite::Database&)>& body) const
      ABSL_LOCKS_EXCLUDED(mu_);

  const std::string path_;  // for messages
  mutable absl::Mutex mu_;
  const std::unique_ptr<SQLite::Database> database_ ABSL_PT_GUARDED_BY(mu_);
};

}  // namespace xfer

#endif  // XFER_COORDINATOR_STORE_STORE_H_
