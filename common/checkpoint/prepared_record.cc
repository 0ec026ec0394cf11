#include "common/checkpoint/prepared_record.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/checkpoint/files.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/checkpoint/values.h"

namespace xfer {
namespace {

// Keeps the order of fields, so that a model's config.json stays as its author wrote it.
using Json = nlohmann::ordered_json;

// Raise it whenever the same request would give other files.
constexpr int kFormat = 1;
constexpr uint64_t kMaxRecordBytes = 256 << 20;

Json FilesToJson(const std::vector<RecordedFile>& files) {
  Json list = Json::array();
  for (const RecordedFile& file : files) {
    Json entry = {{"path", file.path}, {"bytes", file.bytes}};
    if (!file.digest.empty()) entry["digest"] = file.digest;
    if (file.mtime_ns != 0) entry["mtime_ns"] = file.mtime_ns;
    list.push_back(std::move(entry));
  }
  return list;
}

std::vector<RecordedFile> FilesFromJson(const Json& list) {
  std::vector<RecordedFile> files;
  for (const Json& entry : list) {
    files.push_back({entry.at("path").get<std::string>(), entry.at("bytes").get<uint64_t>(),
                     entry.value("digest", ""), entry.value("mtime_ns", int64_t{0})});
  }
  return files;
}

// The first `bytes` of a file.
absl::StatusOr<std::string> ReadStart(const std::string& path, uint64_t bytes) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FileError(errno, "open", path);
  std::string content(bytes, '\0');
  for (size_t at = 0; at < bytes;) {
    const ssize_t n = pread(fd.get(), content.data() + at, bytes - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path);
    if (n == 0) {
      content.resize(at);
      break;
    }
    at += n;
  }
  return content;
}

absl::Status Differs(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(what, " differs"));
}

}  // namespace

std::string ToJson(const PreparedRecord& record) {
  Json json;
  json["format"] = kFormat;
  json["spec"] = Json::parse(record.spec, nullptr, false);
  json["layouts"] = record.layouts;
  if (record.seed) json["synthesized"] = {{"seed", *record.seed}, {"values", kValuesVersion}};
  if (record.source) {
    json["source"] = {{"directory", record.source->directory},
                      {"files", FilesToJson(record.source->files)}};
  }
  json["cut"] = record.cut;
  json["files"] = FilesToJson(record.files);
  json["shards"] = record.shards;
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<PreparedRecord> ParsePreparedRecord(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    if (const int format = json.at("format").get<int>(); format != kFormat) {
      return absl::InvalidArgumentError(
          absl::StrCat("record has format ", format, "; this build reads ", kFormat));
    }
    PreparedRecord record;
    record.spec = json.at("spec").dump();
    record.layouts = json.at("layouts").get<std::string>();
    if (const auto it = json.find("synthesized"); it != json.end()) {
      if (it->at("values").get<int>() != kValuesVersion) {
        return absl::InvalidArgumentError("record has values of another build");
      }
      record.seed = it->at("seed").get<uint64_t>();
    }
    if (const auto it = json.find("source"); it != json.end()) {
      record.source = {it->at("directory").get<std::string>(), FilesFromJson(it->at("files"))};
    }
    record.cut = json.at("cut").get<bool>();
    record.files = FilesFromJson(json.at("files"));
    record.shards = json.at("shards").get<std::vector<std::string>>();
    return record;
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("record is damaged: ", e.what()));
  }
}

absl::StatusOr<PreparedRecord> ReadPreparedRecord(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kRecordName);
  XFER_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  auto record = ParsePreparedRecord(text);
  if (!record.ok()) return Annotate(record.status(), path);
  return record;
}

absl::StatusOr<RecordedFile> DescribeFile(const std::string& directory, const std::string& path) {
  const std::string full = absl::StrCat(directory, "/", path);
  XFER_ASSIGN_OR_RETURN(const FileInfo info, StatFile(full));
  uint64_t part = info.bytes;
  if (absl::EndsWith(path, ".safetensors")) {
    XFER_ASSIGN_OR_RETURN(const std::string length, ReadStart(full, kSafetensorsLengthBytes));
    uint64_t header = 0;
    for (size_t i = 0; i < length.size(); ++i) {
      header |= uint64_t{static_cast<uint8_t>(length[i])} << (8 * i);
    }
    part = std::min(kSafetensorsLengthBytes + std::min(header, kMaxSafetensorsHeaderBytes), part);
  }
  XFER_ASSIGN_OR_RETURN(const std::string start, ReadStart(full, part));
  return RecordedFile{path, info.bytes,
                      absl::StrFormat("%016x", XXH3_64bits(start.data(), start.size())), 0};
}

absl::StatusOr<RecordedSource> DescribeSource(const std::string& directory,
                                              const std::vector<std::string>& files) {
  std::error_code error;
  RecordedSource source;
  source.directory = std::filesystem::canonical(directory, error).string();
  if (error) return FileError(error.value(), "find", directory);
  for (const std::string& file : files) {
    XFER_ASSIGN_OR_RETURN(const FileInfo info, StatFile(absl::StrCat(source.directory, "/", file)));
    source.files.push_back({file, info.bytes, "", info.mtime_ns});
  }
  return source;
}

absl::Status VerifyFiles(const std::string& directory, const PreparedRecord& record) {
  const auto wrong = [](absl::string_view path, absl::string_view how) {
    return absl::FailedPreconditionError(absl::StrCat(path, " ", how));
  };
  for (const RecordedFile& file : record.files) {
    const std::string full = absl::StrCat(directory, "/", file.path);
    auto found = DescribeFile(directory, file.path);
    if (absl::IsNotFound(found.status())) return wrong(full, "is missing");
    if (!found.ok()) return found.status();
    if (found->bytes != file.bytes) {
      return wrong(full, absl::StrCat("has ", found->bytes, " bytes, not ", file.bytes));
    }
    if (found->digest != file.digest) return wrong(full, "has another header than was written");
  }
  if (!record.source) return absl::OkStatus();
  for (const RecordedFile& file : record.source->files) {
    const std::string full = absl::StrCat(record.source->directory, "/", file.path);
    auto info = StatFile(full);
    if (absl::IsNotFound(info.status())) return wrong(full, "is missing");
    if (!info.ok()) return info.status();
    if (info->bytes != file.bytes || info->mtime_ns != file.mtime_ns) {
      return wrong(full, "has changed since");
    }
  }
  return absl::OkStatus();
}

absl::Status SameRequest(const PreparedRecord& a, const PreparedRecord& b) {
  const auto fields = [](const std::string& spec) {
    return nlohmann::json::parse(spec, nullptr, false);  // whatever their order
  };
  if (fields(a.spec) != fields(b.spec)) {
    return Differs("the model or its parallelism");
  }
  if (a.layouts != b.layouts) return Differs("the layout of the training ranks");
  if (a.seed != b.seed) return Differs("the seed");
  if (a.source != b.source) return Differs("the Hugging Face directory");
  if (a.cut != b.cut) return Differs("the number of layers kept");
  return absl::OkStatus();
}

}  // namespace xfer
