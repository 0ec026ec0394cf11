#include "common/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/common/checkpoint/temp_dir.h"

namespace xfer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WithHeader(const std::string& json, size_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t n = json.size();
  std::memcpy(file.data(), &n, 8);
  return file + json + std::string(data_bytes, 'x');
}

std::string Contents(absl::Span<const std::byte> data) {
  return std::string(reinterpret_cast<const char*>(data.data()), data.size());
}

TEST(SafetensorsFile, ReadsWhatTheFormatAllows) {
  const TempDir dir;
  // Header order need not be data order; an empty tensor and a scalar are tensors; spaces may
  // follow.
  WriteRaw(dir.File("a"), WithHeader(R"({"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
                                     R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
                                     R"("e":{"dtype":"I64","shape":[0,3],"data_offsets":[4,4]},)"
                                     R"("__metadata__":{"format":"pt"}}   )",
                                     8));
  auto file = SafetensorsFile::Open(dir.File("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 3u);
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  auto b = (*file)->Find("b");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->dtype, DType::kF32);
  EXPECT_TRUE(b->shape.empty());
  EXPECT_EQ(b->data.size(), 4u);
  EXPECT_EQ((*file)->Find("a")->shape, (Dims{2, 1}));
  EXPECT_EQ((*file)->Find("e")->data.size(), 0u);
  const absl::Status none = (*file)->Find("zz").status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(std::string(none.message()), AllOf(HasSubstr(dir.File("a")), HasSubstr("'zz'")));
}

struct Hostile {
  const char* label;
  std::string json;
  size_t data_bytes;
  const char* message;  // part of the error
};

void PrintTo(const Hostile& h, std::ostream* out) { *out << h.label; }

std::string One(const std::string& fields) { return absl::StrCat(R"({"w":{)", fields, "}}"); }

const Hostile kHostile[] = {
    {"NotJson", R"({"w":)", 4, "not JSON"},
    {"NoBrace", R"( {"w":1})", 4, "does not begin with '{'"},
    {"TrailingJunk", "{}{}", 0, "not JSON"},
    {"BadUtf8", "{\"w\xff\":1}", 0, "not JSON"},
    {"EntryIsNumber", R"({"w":1})", 0, "'w': entry is not a JSON object"},
    {"MetadataIsList", R"({"__metadata__":[]})", 0, "__metadata__"},
    {"MetadataIsNumber", R"({"__metadata__":{"k":7}})", 0, "'k' is 7"},
    {"NoDtype", One(R"("shape":[1],"data_offsets":[0,4])"), 4, "dtype is missing"},
    {"UnknownDtype", One(R"("dtype":"F99","shape":[1],"data_offsets":[0,4])"), 4, "F99"},
    {"TorchDtype", One(R"("dtype":"float32","shape":[1],"data_offsets":[0,4])"), 4,
     "must be written F32"},
    {"NoShape", One(R"("dtype":"F32","data_offsets":[0,4])"), 4, "shape is missing"},
    {"NegativeExtent", One(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4,
     "shape has -1"},
    {"FractionalExtent", One(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "1.0"},
    {"StringExtent", One(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), 4, "\"1\""},
    {"HugeExtent", One(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), 4,
     "9223372036854775808"},
    {"TooManyDims", One(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
     "9 dimensions"},
    {"ProductOverflows",
     One(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0, "63 bits"},
    {"ProductOverflowsToFour",
     One(R"("dtype":"F32","shape":[2147483649,4294967297],"data_offsets":[0,4])"), 4, "63 bits"},
    {"ProductOverflowsBeforeZero",
     One(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0, "63 bits"},
    {"NoOffsets", One(R"("dtype":"F32","shape":[1])"), 4, "data_offsets is missing"},
    {"ThreeOffsets", One(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 8, "two numbers"},
    {"NegativeOffset", One(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), 4, "has -4"},
    {"FractionalOffset", One(R"("dtype":"F32","shape":[1],"data_offsets":[0,4.5])"), 4, "4.5"},
    {"HugeOffset", One(R"("dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999])"), 4,
     "whole number"},
    {"OffsetsReversed", One(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4,
     "out of order"},
    {"OffsetsOutside", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4,
     "outside the file's 4 bytes"},
    {"OffsetsWrap",
     One(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615])"),
     4, "outside"},
    {"WrongSize", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
     "span 4 bytes, but F32 [2] has 8"},
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
     6, "'b': data begins at 2, which overlaps"},
    {"Same",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
     4, "overlaps"},
    {"Gap",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
     10, "'b': data begins at 6, which leaves a gap"},
    {"GapAtFront", One(R"("dtype":"U8","shape":[4],"data_offsets":[1,5])"), 5, "gap"},
    {"RestAtEnd", One(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])"), 5,
     "end at 4 of 5 bytes"},
    {"SameNameTwice",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     8, "'a' twice"},
    {"SameFieldTwice", One(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"dtype":"I8")"), 4,
     "'dtype' twice"},
    {"Deep", absl::StrCat(R"({"a":)", std::string(100'000, '['), std::string(100'000, ']'), "}"), 0,
     "nested deeper"},
};

class HostileHeader : public testing::TestWithParam<Hostile> {};

TEST_P(HostileHeader, IsRefusedByName) {
  const TempDir dir;
  const std::string path = dir.File("model.safetensors");
  WriteRaw(path, WithHeader(GetParam().json, GetParam().data_bytes));
  const absl::Status status = SafetensorsFile::Open(path).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr(GetParam().message)));
  EXPECT_LT(status.message().size(), 600u);
}

INSTANTIATE_TEST_SUITE_P(Table, HostileHeader, testing::ValuesIn(kHostile),
                         [](const auto& p) { return std::string(p.param.label); });

TEST(SafetensorsFile, RefusesLengthsThatTheFileDoesNotHave) {
  const TempDir dir;
  const std::string path = dir.File("f");
  const auto open = [&](const std::string& bytes) {
    WriteRaw(path, bytes);
    return SafetensorsFile::Open(path).status();
  };
  EXPECT_THAT(std::string(open("").message()), HasSubstr("has 0 bytes"));
  EXPECT_THAT(std::string(open("1234567").message()), HasSubstr("has 7 bytes"));
  EXPECT_THAT(std::string(open(std::string("\x09\0\0\0\0\0\0\0{}", 10)).message()),
              HasSubstr("header length 9 is beyond the file's 10 bytes"));
  EXPECT_THAT(std::string(open(std::string(16, '\xff')).message()),
              HasSubstr("header length 18446744073709551615 is over the limit"));
  // One byte over the limit; the file is sparse.
  std::string length(8, '\0');
  const uint64_t n = 100'000'001;
  std::memcpy(length.data(), &n, 8);
  WriteRaw(path, length);
  std::filesystem::resize_file(path, n + 8);
  EXPECT_THAT(std::string(SafetensorsFile::Open(path).status().message()),
              HasSubstr("over the limit"));
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFile::Open(dir.File("none")).status()));
  EXPECT_FALSE(SafetensorsFile::Open(dir.path()).ok());
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  const TempDir dir;
  const std::string whole = WithHeader(One(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8);
  for (size_t n = 0; n < whole.size(); ++n) {
    WriteRaw(dir.File("f"), whole.substr(0, n));
    EXPECT_TRUE(absl::IsInvalidArgument(SafetensorsFile::Open(dir.File("f")).status())) << n;
  }
}

TEST(SafetensorsWriter, RoundTrip) {
  const TempDir dir;
  const std::string path = dir.File("out.safetensors");
  auto writer = SafetensorsWriter::Create(path,
                                          {{"odd", DType::kBF16, {3}},
                                           {"wide", DType::kF32, {2, 2}},
                                           {"byte \"quoted\" \xc3\xa9", DType::kU8, {5}},
                                           {"scalar", DType::kF64, {}},
                                           {"none", DType::kF32, {0, 7}}},
                                          {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_FALSE(std::filesystem::exists(path));
  std::vector<std::thread> threads;
  for (const char* name : {"odd", "wide", "byte \"quoted\" \xc3\xa9", "scalar", "none"}) {
    threads.emplace_back([&writer, name] {
      auto data = (*writer)->Data(name);
      ASSERT_TRUE(data.ok());
      std::fill(data->begin(), data->end(), static_cast<std::byte>(name[0]));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(absl::IsNotFound((*writer)->Data("other").status()));
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Finish()));
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Data("odd").status()));

  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 5u);
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  for (const auto& [name, view] : (*file)->tensors()) {
    EXPECT_EQ(Contents(view.data), std::string(view.data.size(), name[0])) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data.data()) % SizeOf(view.dtype), 0u) << name;
  }
  EXPECT_EQ((*file)->Find("wide")->shape, (Dims{2, 2}));
  EXPECT_EQ((*file)->Find("none")->shape, (Dims{0, 7}));
  // Nothing else is left in the directory.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SafetensorsWriter, LeavesNothingUnfinished) {
  const TempDir dir;
  WriteRaw(dir.File("a"), "old");
  {
    auto writer = SafetensorsWriter::Create(dir.File("a"), {{"w", DType::kU8, {10}}});
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_EQ(ReadRaw(dir.File("a")), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SafetensorsWriter, RefusesBadEntries) {
  const TempDir dir;
  const auto create = [&](std::vector<SafetensorsWriter::Entry> entries) {
    return SafetensorsWriter::Create(dir.File("a"), std::move(entries)).status();
  };
  EXPECT_THAT(std::string(create({{"w", DType::kU8, {1}}, {"w", DType::kU8, {2}}}).message()),
              HasSubstr("'w' is given twice"));
  EXPECT_THAT(std::string(create({{"w", DType::kU8, {-1}}}).message()), HasSubstr("negative"));
  EXPECT_THAT(std::string(create({{"w", DType::kF32, {1ll << 61}}}).message()),
              HasSubstr("63 bits"));
  EXPECT_THAT(std::string(create({{"__metadata__", DType::kU8, {1}}}).message()),
              HasSubstr("__metadata__"));
  EXPECT_THAT(std::string(create({{"\xff", DType::kU8, {1}}}).message()), HasSubstr("UTF-8"));
  EXPECT_THAT(std::string(create({{"w", DType::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1}}}).message()),
              HasSubstr("dimensions"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  const absl::Status nowhere =
      SafetensorsWriter::Create(dir.File("no/such/f"), {{"w", DType::kU8, {1}}}).status();
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("no/such/f"));
}

TEST(SafetensorsWriter, AFileSizeLimitIsFoundAtOnce) {
  const TempDir dir;
  struct rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit small = old;
  small.rlim_cur = 1 << 20;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status =
      SafetensorsWriter::Create(dir.File("a"), {{"w", DType::kU8, {2 << 20}}}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(dir.File("a")), HasSubstr("2097")));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

void WriteFile(const std::string& path, std::vector<std::string> names) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const std::string& name : names) entries.push_back({name, DType::kU8, {2}});
  auto writer = SafetensorsWriter::Create(path, entries);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const std::string& name : names) {
    auto data = (*writer)->Data(name);
    std::fill(data->begin(), data->end(), static_cast<std::byte>(name[0]));
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

TEST(Checkpoint, OneFile) {
  const TempDir dir;
  WriteFile(dir.File("model.safetensors"), {"b", "a"});
  auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->names(), ElementsAre("a", "b"));
  EXPECT_THAT((*checkpoint)->paths(), ElementsAre(dir.File("model.safetensors")));
  EXPECT_EQ(Contents((*checkpoint)->Find("b")->data), "bb");
  const absl::Status none = (*checkpoint)->Find("c").status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(std::string(none.message()), AllOf(HasSubstr(dir.path()), HasSubstr("'c'")));
}

TEST(Checkpoint, Shards) {
  const TempDir dir;
  WriteFile(dir.File("1.safetensors"), {"a", "b"});
  WriteFile(dir.File("2.safetensors"), {"c"});
  const auto open = [&](const std::string& map) {
    WriteRaw(dir.File("model.safetensors.index.json"), absl::StrCat(R"({"weight_map":)", map, "}"));
    return Checkpoint::Open(dir.path());
  };
  auto good = open(R"({"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"})");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_THAT((*good)->names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(Contents((*good)->Find("c")->data), "cc");

  const absl::Status missing_shard = open(R"({"a":"3.safetensors"})").status();
  EXPECT_TRUE(absl::IsNotFound(missing_shard)) << missing_shard;
  EXPECT_THAT(std::string(missing_shard.message()), HasSubstr("3.safetensors"));
  EXPECT_THAT(std::string(open(R"({"z":"1.safetensors"})").status().message()),
              AllOf(HasSubstr("'z'"), HasSubstr("1.safetensors")));
  EXPECT_THAT(std::string(open(R"({"a":"2.safetensors","b":"1.safetensors"})").status().message()),
              AllOf(HasSubstr("'a'"), HasSubstr("2.safetensors")));
  EXPECT_THAT(std::string(open(R"({"a":"../1.safetensors"})").status().message()),
              HasSubstr("../1.safetensors"));
  EXPECT_THAT(std::string(open(R"({"a":7})").status().message()), HasSubstr("has 7"));
  EXPECT_THAT(std::string(open("[]").status().message()), HasSubstr("weight_map"));

  WriteFile(dir.File("2.safetensors"), {"a", "c"});
  EXPECT_THAT(std::string(open(R"({"a":"1.safetensors","c":"2.safetensors"})").status().message()),
              AllOf(HasSubstr("'a' stands in both"), HasSubstr("1.safetensors"),
                    HasSubstr("2.safetensors")));
}

TEST(Checkpoint, NothingThere) {
  const TempDir dir;
  const absl::Status status = Checkpoint::Open(dir.path()).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors.index.json"));
}

}  // namespace
}  // namespace xfer
