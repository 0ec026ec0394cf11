#include "common/checkpoint/prepare.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "common/checkpoint/dump.h"
#include "common/checkpoint/files.h"
#include "common/checkpoint/hf_directory.h"
#include "common/checkpoint/parallel.h"
#include "common/checkpoint/prepare_directory.h"
#include "common/checkpoint/prepared_record.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/checkpoint/shards.h"
#include "common/checkpoint/values.h"
#include "common/layout/layout.h"

namespace xfer {
namespace {

constexpr char kRemedy[] = "run xferctl prepare to make it";

std::string ShardPath(int32_t rank) { return absl::StrFormat("train/rank-%05d.safetensors", rank); }

// Training ranks with equal content.
struct RankGroup {
  std::vector<int32_t> ranks;
  uint64_t bytes = 0;  // of tensors
};

// A digest over all that a rank's file has in it.
std::string Fingerprint(const RankLayout& layout) {
  std::string text;
  const auto add = [&](const Dims& dims) { absl::StrAppend(&text, absl::StrJoin(dims, ","), ";"); };
  for (const LocalTensor& tensor : layout.tensors) {
    absl::StrAppend(&text, tensor.name, "\n", Name(tensor.dtype), ";");
    add(tensor.shape);
    for (const Part& part : tensor.parts) {
      absl::StrAppend(&text, part.tensor, ";");
      add(part.hf.start);
      add(part.hf.extent);
      add(part.local_start);
    }
    absl::StrAppend(&text, "\n");
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

// Finds the groups, in the order of their first ranks, and a digest over all layouts.
absl::StatusOr<std::vector<RankGroup>> GroupRanks(const ModelSpec& spec, const TensorTable& table,
                                                  std::string* digest) {
  std::vector<RankGroup> groups;
  std::map<std::string, size_t> by_fingerprint;
  std::string all;
  for (int32_t rank = 0; rank < spec.train.world; ++rank) {
    XFER_ASSIGN_OR_RETURN(const RankLayout layout, MegatronLayout(spec, table, rank));
    const std::string fingerprint = Fingerprint(layout);
    all += fingerprint;
    const auto [it, fresh] = by_fingerprint.emplace(fingerprint, groups.size());
    if (fresh) {
      RankGroup& group = groups.emplace_back();
      for (const LocalTensor& tensor : layout.tensors) {
        XFER_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor.dtype, tensor.shape));
        group.bytes += bytes;
      }
    }
    groups[it->second].ranks.push_back(rank);
  }
  *digest = absl::StrFormat("%016x", XXH3_64bits(all.data(), all.size()));
  return groups;
}

// Counts bytes for the caller. Thread-safe.
class Progress {
 public:
  Progress(const PrepareOptions& options, uint64_t total) : options_(options), total_(total) {}
  void Add(uint64_t bytes, absl::string_view file) {
    absl::MutexLock lock(&mu_);
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_, file);
  }
  uint64_t done() const {
    absl::MutexLock lock(&mu_);
    return done_;
  }

 private:
  const PrepareOptions& options_;
  const uint64_t total_;
  mutable absl::Mutex mu_;
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;
};

// One preparation.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, PrepareDirectory& directory)
      : options_(options), directory_(directory) {
    threads_ = options.threads > 0
                   ? options.threads
                   : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  }

  absl::StatusOr<PrepareResult> Run();

 private:
  absl::Status Resolve();
  absl::Status Write();
  absl::Status WriteHf();
  absl::Status WriteRank(int32_t rank, const Checkpoint& checkpoint);
  absl::Status LinkRank(int32_t from, int32_t to, const Checkpoint& checkpoint);
  absl::Status Record(const std::string& path);
  std::string hf_dir() const {
    return record_.own_hf() ? directory_.hf() : record_.source->directory;
  }

  const PrepareOptions& options_;
  PrepareDirectory& directory_;
  int threads_ = 1;
  TensorTable table_;
  std::unique_ptr<Checkpoint> source_;  // the given directory's
  std::vector<RankGroup> groups_;
  PreparedRecord record_;
  std::optional<Progress> progress_;
};

// Works out what is asked for; reads, but writes nothing.
absl::Status Preparation::Resolve() {
  XFER_RETURN_IF_ERROR(Validate(options_.spec));
  XFER_ASSIGN_OR_RETURN(table_, BuildTensorTable(options_.spec.config));
  record_.spec = ToJson(options_.spec);
  XFER_ASSIGN_OR_RETURN(groups_, GroupRanks(options_.spec, table_, &record_.layouts));
  if (options_.synthesize) {
    record_.seed = options_.seed;
    return absl::OkStatus();
  }
  record_.cut = options_.cut;
  std::error_code ignored;
  if (std::filesystem::equivalent(options_.hf_dir, directory_.hf(), ignored)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.hf_dir,
                     " is where this preparation keeps its own files; choose another "
                     "output directory"));
  }
  XFER_ASSIGN_OR_RETURN(source_,
                        OpenHfDirectory(options_.hf_dir, options_.spec, table_, options_.cut));
  std::vector<std::string> files = {"config.json"};
  for (const std::string& path : source_->paths()) {
    files.push_back(std::filesystem::path(path).filename().string());
  }
  XFER_ASSIGN_OR_RETURN(record_.source, DescribeSource(options_.hf_dir, files));
  return absl::OkStatus();
}

absl::StatusOr<PrepareResult> Preparation::Run() {
  XFER_RETURN_IF_ERROR(Resolve());
  PrepareResult result;
  absl::Status known = absl::FailedPreconditionError("nothing was prepared there");
  if (auto old = ReadPreparedRecord(directory_.path()); old.ok()) {
    known = SameRequest(*old, record_);
    if (known.ok()) known = VerifyFiles(directory_.path(), *old);
    if (known.ok()) record_ = *std::move(old);
  } else if (!absl::IsNotFound(old.status())) {
    known = old.status();
  }
  result.already_done = known.ok();
  if (!known.ok()) {
    result.reason = absl::StrCat(known.message());
    XFER_RETURN_IF_ERROR(directory_.CheckOwned());
    uint64_t bytes = record_.own_hf() ? static_cast<uint64_t>(table_.total_bytes()) : 0;
    for (const RankGroup& group : groups_) bytes += group.bytes;
    // Headers, index and record: less than a hundredth, and some room for small files' last blocks.
    XFER_RETURN_IF_ERROR(directory_.CheckSpace(bytes + bytes / 100 + (uint64_t{1} << 20)));
    progress_.emplace(options_, bytes);
    if (absl::Status status = Write(); !status.ok()) {
      directory_.Abandon();
      return status;
    }
    result.bytes_written = progress_->done();
  }
  result.prepared.spec = options_.spec;
  result.prepared.synthesized = options_.synthesize;
  result.prepared.seed = record_.seed.value_or(0);
  result.prepared.hf_dir = hf_dir();
  for (const std::string& shard : record_.shards) {
    result.prepared.shards.push_back(absl::StrCat(directory_.path(), "/", shard));
  }
  return result;
}

absl::Status Preparation::Write() {
  XFER_RETURN_IF_ERROR(directory_.Begin());
  if (record_.own_hf()) XFER_RETURN_IF_ERROR(WriteHf());
  std::unique_ptr<Checkpoint> written;
  if (record_.own_hf()) {
    XFER_ASSIGN_OR_RETURN(written, Checkpoint::Open(directory_.hf()));
  }
  const Checkpoint& checkpoint = written ? *written : *source_;
  record_.shards.resize(options_.spec.train.world);
  for (const RankGroup& group : groups_) {
    const int32_t first = group.ranks.front();
    for (const int32_t rank : group.ranks) {
      record_.shards[rank] = ShardPath(rank);
      XFER_RETURN_IF_ERROR(rank == first ? WriteRank(rank, checkpoint)
                                         : LinkRank(first, rank, checkpoint));
    }
  }
  for (const std::string& shard : record_.shards) XFER_RETURN_IF_ERROR(Record(shard));
  XFER_RETURN_IF_ERROR(SyncDirectory(directory_.train()));
  return directory_.Finish(ToJson(record_));
}

absl::Status Preparation::WriteHf() {
  const std::vector<HfFile> files = PlanHfFiles(table_, options_.max_hf_file_bytes);
  const auto fill = [&](TensorId id, uint64_t first, absl::Span<std::byte> data) -> absl::Status {
    const TensorInfo& tensor = table_[id];
    if (options_.synthesize) {
      SynthesizeRun(SeededKey(tensor.name, options_.seed), tensor.dtype, first, data);
    } else {
      XFER_ASSIGN_OR_RETURN(const TensorView view, source_->Find(tensor.name));
      const auto size = static_cast<uint64_t>(SizeOf(tensor.dtype));
      std::memcpy(data.data(), view.data.data() + first * size, data.size());
    }
    progress_->Add(data.size(), "hf");
    return absl::OkStatus();
  };
  XFER_RETURN_IF_ERROR(
      WriteHfDirectory(directory_.hf(), options_.spec.config, table_, files, threads_, fill));
  XFER_RETURN_IF_ERROR(Record("hf/config.json"));
  for (const HfFile& file : files) XFER_RETURN_IF_ERROR(Record(absl::StrCat("hf/", file.name)));
  if (files.size() > 1) return Record("hf/model.safetensors.index.json");
  return absl::OkStatus();
}

absl::Status Preparation::WriteRank(int32_t rank, const Checkpoint& checkpoint) {
  XFER_ASSIGN_OR_RETURN(const RankLayout layout, MegatronLayout(options_.spec, table_, rank));
  const std::string path = absl::StrCat(directory_.path(), "/", ShardPath(rank));
  XFER_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(path, RankEntries(layout)));
  XFER_RETURN_IF_ERROR(ParallelFor(layout.tensors.size(), threads_, [&](size_t i) -> absl::Status {
    const LocalTensor& tensor = layout.tensors[i];
    XFER_ASSIGN_OR_RETURN(const absl::Span<std::byte> data, writer->Data(tensor.name));
    XFER_RETURN_IF_ERROR(FillFromCheckpoint(tensor, table_, checkpoint, data));
    progress_->Add(data.size(), ShardPath(rank));
    return absl::OkStatus();
  }));
  return writer->Finish();
}

absl::Status Preparation::LinkRank(int32_t from, int32_t to, const Checkpoint& checkpoint) {
  const std::string existing = absl::StrCat(directory_.path(), "/", ShardPath(from));
  const std::string path = absl::StrCat(directory_.path(), "/", ShardPath(to));
  if (link(existing.c_str(), path.c_str()) == 0) return absl::OkStatus();
  // File systems without hard links, or with too many of this one already, get a file of its own.
  if (errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK || errno == ENOSYS) {
    return WriteRank(to, checkpoint);
  }
  return FileError(errno, absl::StrCat("link ", existing, " to"), path);
}

absl::Status Preparation::Record(const std::string& path) {
  XFER_ASSIGN_OR_RETURN(RecordedFile file, DescribeFile(directory_.path(), path));
  record_.files.push_back(std::move(file));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options) {
  if (options.out_dir.empty())
    return absl::InvalidArgumentError("prepare needs an output directory");
  if (options.synthesize == !options.hf_dir.empty()) {
    return absl::InvalidArgumentError(
        "prepare needs either a Hugging Face directory or synthesised values, and not both");
  }
  if (options.tiny && !options.synthesize) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tiny model has no weights in ", options.hf_dir,
                     "; synthesise its values, or prepare the model in full size"));
  }
  XFER_ASSIGN_OR_RETURN(auto directory, PrepareDirectory::Open(options.out_dir));
  return Preparation(options, *directory).Run();
}

absl::StatusOr<Prepared> OpenPrepared(const std::string& directory) {
  auto record = ReadPreparedRecord(directory);
  if (absl::IsNotFound(record.status())) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(directory, ignored)) {
      return absl::NotFoundError(absl::StrCat("no directory ", directory, "; ", kRemedy));
    }
    return absl::FailedPreconditionError(absl::StrCat(directory,
                                                      " is not prepared, or its preparation "
                                                      "did not finish; ",
                                                      kRemedy));
  }
  if (!record.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(record.status().message(), "; ", kRemedy));
  }
  if (absl::Status status = VerifyFiles(directory, *record); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is not as it was prepared: ", status.message(), "; ", kRemedy));
  }
  Prepared prepared;
  auto spec = ParseModelSpec(record->spec);
  if (!spec.ok()) return Annotate(spec.status(), absl::StrCat(directory, "/", kRecordName));
  prepared.spec = *std::move(spec);
  prepared.synthesized = record->seed.has_value();
  prepared.seed = record->seed.value_or(0);
  prepared.hf_dir = record->own_hf() ? absl::StrCat(directory, "/hf") : record->source->directory;
  for (const std::string& shard : record->shards) {
    prepared.shards.push_back(absl::StrCat(directory, "/", shard));
  }
  return prepared;
}

}  // namespace xfer
