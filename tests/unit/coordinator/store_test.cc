#include "coordinator/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"

namespace xfer {
namespace {

using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/xfer-store-", getpid());
    std::filesystem::create_directories(directory_);
    path_ = directory_ + "/state.db";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Store> Open() {
    auto store = Store::Open(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string directory_;
  std::string path_;
};

v1::Job Job(const std::string& name, uint64_t generation = 1) {
  v1::Job job;
  job.set_name(name);
  job.set_spec_json("{\"a\": \"\xc3\xa4\"}");
  job.set_generation(generation);
  return job;
}

v1::Sync Sync(uint64_t id, v1::SyncState state = v1::SYNC_STATE_RUNNING) {
  v1::Sync sync;
  sync.set_id(id);
  sync.set_job("job");
  sync.set_state(state);
  return sync;
}

StoredEngine Engine(int32_t engine, int64_t version) {
  StoredEngine out;
  out.engine = engine;
  out.version = version;
  out.dirty = version % 2 == 1;
  out.dirty_reason = "it's 'so'; DROP TABLE jobs";
  for (int32_t rank = 0; rank < 2; ++rank) {
    out.ranks.push_back({{Role::kRollout, engine, rank},
                         "node",
                         std::numeric_limits<uint64_t>::max() - 1,
                         (uint64_t{1} << 63) + static_cast<uint64_t>(rank)});
  }
  return out;
}

TEST_F(StoreTest, HasAfterOpeningAgainWhatWasSaved) {
  {
    auto store = Open();
    EXPECT_TRUE(store->Jobs()->empty());
    EXPECT_EQ(*store->NextSyncId(), 1u);
    ASSERT_TRUE(store->ReplaceJob(Job("job")).ok());
    ASSERT_TRUE(store->ReplaceJob(Job("another")).ok());
    ASSERT_TRUE(store->SaveEngines("job", {Engine(0, 3), Engine(1, 4)}).ok());
    ASSERT_TRUE(store->SaveEngines("job", {Engine(0, 5)}).ok());
    v1::Job finished = Job("job", 9);
    finished.set_finished(true);
    ASSERT_TRUE(store->UpdateJob(finished).ok());
    ASSERT_TRUE(store->SaveSync(Sync(1), 10).ok());
    ASSERT_TRUE(store->SaveSync(Sync(1, v1::SYNC_STATE_DONE), 10).ok());
    ASSERT_TRUE(store->SaveSync(Sync(2), 10).ok());
    ASSERT_TRUE(store->SaveNextSyncId(9).ok());
    ASSERT_TRUE(store->SaveNextSyncId(4).ok());  // it only grows
  }
  auto store = Open();
  const auto jobs = *store->Jobs();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].info.name(), "another");
  EXPECT_TRUE(jobs[0].engines.empty());
  EXPECT_TRUE(jobs[1].info.finished());
  EXPECT_EQ(jobs[1].info.generation(), 9u);
  EXPECT_EQ(jobs[1].info.spec_json(), Job("job").spec_json());
  EXPECT_EQ(jobs[1].engines, (std::vector<StoredEngine>{Engine(0, 5), Engine(1, 4)}));
  const auto syncs = *store->Syncs(10);
  ASSERT_EQ(syncs.size(), 2u);
  EXPECT_EQ(syncs[0].state(), v1::SYNC_STATE_DONE);
  EXPECT_EQ(syncs[1].id(), 2u);
  EXPECT_EQ(store->Syncs(1)->at(0).id(), 2u) << "the newest";
  EXPECT_EQ(*store->NextSyncId(), 9u);
}

TEST_F(StoreTest, AReplacedJobKeepsNothingOfTheOldOne) {
  auto store = Open();
  ASSERT_TRUE(store->ReplaceJob(Job("job")).ok());
  ASSERT_TRUE(store->SaveEngines("job", {Engine(0, 3)}).ok());
  ASSERT_TRUE(store->ReplaceJob(Job("job", 2)).ok());
  const auto jobs = *store->Jobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].info.generation(), 2u);
  EXPECT_TRUE(jobs[0].engines.empty());
  EXPECT_EQ(store->UpdateJob(Job("none")).code(), absl::StatusCode::kNotFound);
  // All or nothing: the second names a job that is not there.
  EXPECT_FALSE(store->SaveEngines("none", {Engine(0, 1)}).ok());
}

TEST_F(StoreTest, KeepsTheNewestSyncs) {
  auto store = Open();
  for (uint64_t id = 1; id <= 20; ++id) ASSERT_TRUE(store->SaveSync(Sync(id), 5).ok());
  const auto syncs = *store->Syncs(100);
  ASSERT_EQ(syncs.size(), 5u);
  EXPECT_EQ(syncs.front().id(), 16u);
  EXPECT_EQ(*store->NextSyncId(), 21u);
}

TEST_F(StoreTest, SurvivesAKillInTheMiddleOfWriting) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto store = Store::Open(path_);
    if (!store.ok()) _exit(1);
    for (uint64_t id = 1;; ++id) {
      if (!(*store)->SaveSync(Sync(id), 1000).ok()) _exit(1);
      if (write(pipe_fds[1], &id, sizeof(id)) != sizeof(id)) _exit(1);
    }
  }
  close(pipe_fds[1]);
  uint64_t acknowledged = 0;
  while (acknowledged < 50) {
    ASSERT_EQ(read(pipe_fds[0], &acknowledged, sizeof(acknowledged)),
              static_cast<ssize_t>(sizeof(acknowledged)));
  }
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  while (read(pipe_fds[0], &acknowledged, sizeof(acknowledged)) > 0) {
  }
  close(pipe_fds[0]);
  auto store = Open();
  EXPECT_GE(store->Syncs(1)->at(0).id(), acknowledged);
  EXPECT_GT(*store->NextSyncId(), acknowledged);
}

TEST_F(StoreTest, OneProcessHasIt) {
  auto store = Open();
  const absl::Status second = Store::Open(path_).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("another process"));
  EXPECT_THAT(std::string(second.message()), HasSubstr(path_));
}

TEST_F(StoreTest, LeavesADamagedFileAsItIs) {
  {
    auto store = Open();
    for (uint64_t id = 1; id < 300; ++id) ASSERT_TRUE(store->SaveSync(Sync(id), 1000).ok());
  }
  std::string bytes = Bytes();
  ASSERT_GT(bytes.size(), 20'000u);
  for (size_t i = 8'192; i < 16'384; ++i) bytes[i] = static_cast<char>(i * 7);
  Write(bytes);
  const absl::Status damaged = Store::Open(path_).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(path_));
  EXPECT_EQ(Bytes(), bytes);

  const std::string text = "this is no database, but somebody's notes\n" + std::string(5'000, 'x');
  Write(text);
  EXPECT_EQ(Store::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Bytes(), text);
}

TEST_F(StoreTest, RefusesWhatOthersWrote) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "CREATE TABLE t (x)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const absl::Status foreign = Store::Open(path_).status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kDataLoss) << foreign;
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("another program"));

  std::filesystem::remove(path_);
  Open().reset();
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "PRAGMA user_version = 99", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  const absl::Status newer = Store::Open(path_).status();
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition) << newer;
  EXPECT_THAT(std::string(newer.message()), HasSubstr("newer xfer"));
}

TEST_F(StoreTest, KeepsModelsByName) {
  v1::Model model;
  model.set_name("mine");
  model.set_spec_json("{\"a\": 1}");
  ASSERT_TRUE(Open()->SaveModel(model).ok());
  model.set_spec_json("{\"a\": 2}");
  ASSERT_TRUE(Open()->SaveModel(model).ok());
  v1::Model other;
  other.set_name("a-first");
  ASSERT_TRUE(Open()->SaveModel(other).ok());
  const auto models = Open()->Models();
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 2u);
  EXPECT_EQ(models->front().name(), "a-first");
  EXPECT_EQ(models->back().spec_json(), "{\"a\": 2}");
}

TEST_F(StoreTest, AFileOfTheFirstSchemaGetsWhatItLacks) {
  ASSERT_TRUE(Open()->ReplaceJob(Job("job")).ok());
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "DROP TABLE models; PRAGMA user_version = 1", nullptr, nullptr,
                         nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  v1::Model model;
  model.set_name("mine");
  ASSERT_TRUE(Open()->SaveModel(model).ok());
  EXPECT_EQ(Open()->Models()->size(), 1u);
  EXPECT_EQ(Open()->Jobs()->size(), 1u);
}

TEST_F(StoreTest, SaysWhereItCannotBe) {
  path_ = directory_ + "/none/state.db";
  const absl::Status nowhere = Store::Open(path_).status();
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kFailedPrecondition) << nowhere;
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr(path_));
}

}  // namespace
}  // namespace xfer
