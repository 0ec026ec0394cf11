#include "coordinator/store/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace xfer {
namespace {

constexpr int kSchema = 2;
constexpr int kApplicationId = 0x78666572;  // "xfer"
constexpr int kBusyTimeoutMs = 2'000;
constexpr char kNextSyncId[] = "next_sync_id";

constexpr char kTables[] = R"sql(
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE jobs (
  name TEXT PRIMARY KEY,
  info BLOB NOT NULL        -- xfer.v1.Job
) STRICT;
CREATE TABLE engines (
  job TEXT NOT NULL REFERENCES jobs (name) ON DELETE CASCADE,
  engine INTEGER NOT NULL,
  version INTEGER NOT NULL,
  dirty INTEGER NOT NULL,
  dirty_reason TEXT NOT NULL,
  PRIMARY KEY (job, engine)
) STRICT;
CREATE TABLE ranks (
  job TEXT NOT NULL,
  engine INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  node TEXT NOT NULL,
  incarnation INTEGER NOT NULL,
  registration_id INTEGER NOT NULL,
  PRIMARY KEY (job, engine, rank),
  FOREIGN KEY (job, engine) REFERENCES engines (job, engine) ON DELETE CASCADE
) STRICT;
CREATE TABLE syncs (
  id INTEGER PRIMARY KEY,
  job TEXT NOT NULL,
  info BLOB NOT NULL        -- xfer.v1.Sync
) STRICT;
)sql";

// Since schema 2.
constexpr char kModelsTable[] = R"sql(
CREATE TABLE models (
  name TEXT PRIMARY KEY,
  info BLOB NOT NULL        -- xfer.v1.Model
) STRICT;
)sql";

// SQLite's integers are signed; all 64 bits are kept.
int64_t ToSql(uint64_t value) { return static_cast<int64_t>(value); }
uint64_t FromSql(int64_t value) { return static_cast<uint64_t>(value); }

absl::Status ToStatus(const SQLite::Exception& error, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", error.what());
  switch (error.getErrorCode()) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(absl::StrCat(text, "; make room on its disk"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(absl::StrCat(
          text,
          "; another process, perhaps another coordinator, has it open: end that one, or "
          "take another --state"));
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return absl::FailedPreconditionError(absl::StrCat(
          text, "; its directory must exist, and it and the directory must be writable"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(
          text, "; it was left as it is: restore it from a copy, or move it away to start anew"));
    default:
      return absl::InternalError(text);
  }
}

template <class Message>
void Read(const SQLite::Column& column, Message& out) {
  if (!out.ParseFromArray(column.getBlob(), column.getBytes())) {
    throw SQLite::Exception("a record cannot be read", SQLITE_CORRUPT);
  }
}

void BindBlob(SQLite::Statement& statement, int index, const std::string& bytes) {
  statement.bind(index, bytes.data(), static_cast<int>(bytes.size()));
}

// Brings a file of an older `schema`, or an empty one (0), to the present one.
void MakeTables(SQLite::Database& database, int schema) {
  SQLite::Transaction transaction(database);
  if (schema < 1) database.exec(kTables);
  if (schema < 2) database.exec(kModelsTable);
  database.exec(absl::StrCat("PRAGMA application_id = ", kApplicationId));
  database.exec(absl::StrCat("PRAGMA user_version = ", kSchema));
  transaction.commit();
}

absl::Status Prepare(SQLite::Database& database, const std::string& what) {
  // Before anything is written: a file of something else must stay what it is.
  const int application = database.execAndGet("PRAGMA application_id").getInt();
  const int schema = database.execAndGet("PRAGMA user_version").getInt();
  const int tables = database.execAndGet("SELECT count(*) FROM sqlite_master").getInt();
  const bool fresh = application == 0 && schema == 0 && tables == 0;
  if (!fresh && application != kApplicationId) {
    return absl::DataLossError(
        absl::StrCat(what,
                     ": it is an SQLite file of another program; it was left as it is: take "
                     "another --state"));
  }
  if (schema > kSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": a newer xfer wrote it (schema ", schema, "; this one knows ", kSchema,
                     "): run that version, or take another --state"));
  }
  // No other process may write beside this one; held until the end, and given back by the kernel
  // if that comes by kill -9.
  database.exec("PRAGMA locking_mode = EXCLUSIVE");
  database.exec("PRAGMA foreign_keys = ON");
  database.execAndGet("PRAGMA journal_mode = WAL");
  database.exec("PRAGMA synchronous = FULL");
  const std::string check = database.execAndGet("PRAGMA quick_check(1)").getString();
  if (check != "ok") throw SQLite::Exception(check, SQLITE_CORRUPT);
  if (schema < kSchema) MakeTables(database, schema);
  return absl::OkStatus();
}

std::vector<StoredRank> RanksOf(SQLite::Database& database, const std::string& job,
                                int32_t engine) {
  SQLite::Statement rows(database,
                         "SELECT rank, node, incarnation, registration_id FROM ranks "
                         "WHERE job = ? AND engine = ? ORDER BY rank");
  rows.bind(1, job);
  rows.bind(2, engine);
  std::vector<StoredRank> out;
  while (rows.executeStep()) {
    StoredRank& rank = out.emplace_back();
    rank.id = {Role::kRollout, engine, rows.getColumn(0).getInt()};
    rank.node = rows.getColumn(1).getString();
    rank.incarnation = FromSql(rows.getColumn(2).getInt64());
    rank.registration_id = FromSql(rows.getColumn(3).getInt64());
  }
  return out;
}

void SaveEngine(SQLite::Database& database, const std::string& job, const StoredEngine& engine) {
  // Takes its ranks with it.
  SQLite::Statement remove(database, "DELETE FROM engines WHERE job = ? AND engine = ?");
  remove.bind(1, job);
  remove.bind(2, engine.engine);
  remove.exec();
  SQLite::Statement insert(database, "INSERT INTO engines VALUES (?, ?, ?, ?, ?)");
  insert.bind(1, job);
  insert.bind(2, engine.engine);
  insert.bind(3, engine.version);
  insert.bind(4, engine.dirty ? 1 : 0);
  insert.bind(5, engine.dirty_reason);
  insert.exec();
  SQLite::Statement rank_insert(database, "INSERT INTO ranks VALUES (?, ?, ?, ?, ?, ?)");
  for (const StoredRank& rank : engine.ranks) {
    rank_insert.reset();
    rank_insert.bind(1, job);
    rank_insert.bind(2, engine.engine);
    rank_insert.bind(3, rank.id.rank);
    rank_insert.bind(4, rank.node);
    rank_insert.bind(5, ToSql(rank.incarnation));
    rank_insert.bind(6, ToSql(rank.registration_id));
    rank_insert.exec();
  }
}

void RaiseNextSyncId(SQLite::Database& database, uint64_t id) {
  SQLite::Statement save(database,
                         "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
                         "SET value = max(value, excluded.value)");
  save.bind(1, kNextSyncId);
  save.bind(2, ToSql(id));
  save.exec();
}

}  // namespace

Store::Store(std::string path, std::unique_ptr<SQLite::Database> database)
    : path_(std::move(path)), database_(std::move(database)) {}

Store::~Store() = default;

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& path) {
  const std::string what = absl::StrCat("state ", path.empty() ? "in memory" : path);
  try {
    auto database = std::make_unique<SQLite::Database>(path.empty() ? ":memory:" : path,
                                                       SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE,
                                                       kBusyTimeoutMs);
    XFER_RETURN_IF_ERROR(Prepare(*database, what));
    return std::unique_ptr<Store>(new Store(what, std::move(database)));
  } catch (const SQLite::Exception& error) {
    return ToStatus(error, what);
  }
}

absl::Status Store::Do(const char* what, const std::function<void(SQLite::Database&)>& body) const {
  absl::MutexLock lock(&mu_);
  try {
    body(*database_);
  } catch (const SQLite::Exception& error) {
    return ToStatus(error, absl::StrCat(path_, ": ", what));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredJob>> Store::Jobs() const {
  std::vector<StoredJob> out;
  XFER_RETURN_IF_ERROR(Do("reading jobs", [&out](SQLite::Database& database) {
    SQLite::Statement jobs(database, "SELECT info FROM jobs ORDER BY name");
    while (jobs.executeStep()) Read(jobs.getColumn(0), out.emplace_back().info);
    for (StoredJob& job : out) {
      SQLite::Statement rows(database,
                             "SELECT engine, version, dirty, dirty_reason FROM engines "
                             "WHERE job = ? ORDER BY engine");
      rows.bind(1, job.info.name());
      while (rows.executeStep()) {
        StoredEngine& engine = job.engines.emplace_back();
        engine.engine = rows.getColumn(0).getInt();
        engine.version = rows.getColumn(1).getInt64();
        engine.dirty = rows.getColumn(2).getInt() != 0;
        engine.dirty_reason = rows.getColumn(3).getString();
        engine.ranks = RanksOf(database, job.info.name(), engine.engine);
      }
    }
  }));
  return out;
}

absl::StatusOr<std::vector<v1::Sync>> Store::Syncs(size_t limit) const {
  std::vector<v1::Sync> out;
  XFER_RETURN_IF_ERROR(Do("reading syncs", [&](SQLite::Database& database) {
    SQLite::Statement rows(database, "SELECT info FROM syncs ORDER BY id DESC LIMIT ?");
    rows.bind(1, static_cast<int64_t>(limit));
    while (rows.executeStep()) Read(rows.getColumn(0), out.emplace_back());
  }));
  std::reverse(out.begin(), out.end());
  return out;
}

absl::StatusOr<uint64_t> Store::NextSyncId() const {
  uint64_t out = 1;
  XFER_RETURN_IF_ERROR(Do("reading the next sync's number", [&out](SQLite::Database& database) {
    SQLite::Statement row(database, "SELECT value FROM meta WHERE key = ?");
    row.bind(1, kNextSyncId);
    if (row.executeStep()) out = FromSql(row.getColumn(0).getInt64());
  }));
  return out;
}

absl::StatusOr<std::vector<v1::Model>> Store::Models() const {
  std::vector<v1::Model> out;
  XFER_RETURN_IF_ERROR(Do("reading models", [&out](SQLite::Database& database) {
    SQLite::Statement rows(database, "SELECT info FROM models ORDER BY name");
    while (rows.executeStep()) Read(rows.getColumn(0), out.emplace_back());
  }));
  return out;
}

absl::Status Store::SaveModel(const v1::Model& model) {
  return Do("saving a model", [&model](SQLite::Database& database) {
    SQLite::Statement insert(database, "INSERT OR REPLACE INTO models VALUES (?, ?)");
    insert.bind(1, model.name());
    BindBlob(insert, 2, model.SerializeAsString());
    insert.exec();
  });
}

absl::Status Store::ReplaceJob(const v1::Job& job) {
  return Do("saving a job", [&job](SQLite::Database& database) {
    SQLite::Transaction transaction(database);
    SQLite::Statement remove(database, "DELETE FROM jobs WHERE name = ?");
    remove.bind(1, job.name());
    remove.exec();
    SQLite::Statement insert(database, "INSERT INTO jobs VALUES (?, ?)");
    insert.bind(1, job.name());
    BindBlob(insert, 2, job.SerializeAsString());
    insert.exec();
    transaction.commit();
  });
}

absl::Status Store::UpdateJob(const v1::Job& job) {
  int changed = 0;
  XFER_RETURN_IF_ERROR(Do("saving a job", [&](SQLite::Database& database) {
    SQLite::Statement update(database, "UPDATE jobs SET info = ? WHERE name = ?");
    BindBlob(update, 1, job.SerializeAsString());
    update.bind(2, job.name());
    changed = update.exec();
  }));
  if (changed == 1) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(path_, ": it has no job ", job.name()));
}

absl::Status Store::SaveEngines(const std::string& job, const std::vector<StoredEngine>& engines) {
  return Do("saving engines", [&](SQLite::Database& database) {
    SQLite::Transaction transaction(database);
    for (const StoredEngine& engine : engines) SaveEngine(database, job, engine);
    transaction.commit();
  });
}

absl::Status Store::SaveSync(const v1::Sync& sync, size_t keep) {
  return Do("saving a sync", [&](SQLite::Database& database) {
    SQLite::Transaction transaction(database);
    SQLite::Statement insert(database, "INSERT OR REPLACE INTO syncs VALUES (?, ?, ?)");
    insert.bind(1, ToSql(sync.id()));
    insert.bind(2, sync.job());
    BindBlob(insert, 3, sync.SerializeAsString());
    insert.exec();
    SQLite::Statement drop(
        database,
        "DELETE FROM syncs WHERE id <= (SELECT id FROM syncs ORDER BY id DESC LIMIT 1 OFFSET ?)");
    drop.bind(1, static_cast<int64_t>(keep));
    drop.exec();
    RaiseNextSyncId(database, sync.id() + 1);
    transaction.commit();
  });
}

absl::Status Store::SaveNextSyncId(uint64_t id) {
  return Do("saving the next sync's number",
            [id](SQLite::Database& database) { RaiseNextSyncId(database, id); });
}

}  // namespace xfer
