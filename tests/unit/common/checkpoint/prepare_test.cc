#include "common/checkpoint/prepare.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/values.h"
#include "common/layout/layout.h"
#include "tests/unit/common/checkpoint/temp_dir.h"

namespace xfer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec Tiny(const std::string& name, int64_t layers) {
  auto preset = FindPreset(name);
  EXPECT_TRUE(preset.ok()) << preset.status();
  auto spec = Shrink(*preset);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (layers != 0) {
    auto config = KeepLayers(spec->config, layers);
    EXPECT_TRUE(config.ok()) << config.status();
    spec->config = *config;
  }
  return *spec;
}

PrepareOptions Synthesize(const ModelSpec& spec, const std::string& out) {
  PrepareOptions options;
  options.spec = spec;
  options.synthesize = true;
  options.tiny = true;
  options.out_dir = out;
  options.seed = 5;
  options.threads = 2;
  return options;
}

PrepareOptions FromDirectory(const ModelSpec& spec, const std::string& hf, const std::string& out) {
  PrepareOptions options;
  options.spec = spec;
  options.hf_dir = hf;
  options.out_dir = out;
  options.threads = 2;
  return options;
}

// Every regular file below a directory, with its content.
std::map<std::string, std::string> Tree(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) {
      files[fs::relative(entry.path(), directory).string()] = ReadRaw(entry.path().string());
    }
  }
  return files;
}

// Bytes of a tensor of a checkpoint or file.
template <typename File>
std::string Get(const File& file, const std::string& name) {
  auto view = file.Find(name);
  EXPECT_TRUE(view.ok()) << view.status();
  if (!view.ok()) return "";
  return std::string(reinterpret_cast<const char*>(view->data.data()), view->data.size());
}

// Rows [first, last) of a row-major BF16 matrix of `columns` columns.
std::string Rows(const std::string& matrix, int64_t columns, int64_t first, int64_t last) {
  return matrix.substr(first * columns * 2, (last - first) * columns * 2);
}
std::string Columns(const std::string& matrix, int64_t columns, int64_t first, int64_t last) {
  std::string out;
  for (size_t at = 0; at < matrix.size(); at += columns * 2) {
    out += matrix.substr(at + first * 2, (last - first) * 2);
  }
  return out;
}

class PrepareTest : public testing::Test {
 protected:
  static const ModelSpec& qwen() {
    static const ModelSpec& spec = *new ModelSpec(Tiny("Qwen3-4B", 2));
    return spec;
  }
  std::string out() const { return dir_.File("out"); }
  PrepareResult MustPrepare(const PrepareOptions& options) {
    auto result = Prepare(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : PrepareResult();
  }
  const TempDir dir_;
};

TEST_F(PrepareTest, SynthesisedTensorsHaveTheModelsShapesAndTheSeedsValues) {
  const PrepareResult result = MustPrepare(Synthesize(qwen(), out()));
  EXPECT_FALSE(result.already_done);
  EXPECT_EQ(result.prepared.hf_dir, out() + "/hf");
  auto table = BuildTensorTable(qwen().config);
  ASSERT_TRUE(table.ok());
  auto checkpoint = Checkpoint::Open(result.prepared.hf_dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->names().size(), static_cast<size_t>(table->size()));
  for (const TensorInfo& tensor : table->all()) {
    auto view = (*checkpoint)->Find(tensor.name);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->dtype, tensor.dtype);
    EXPECT_EQ(view->shape, tensor.shape);
    std::vector<std::byte> expected(tensor.bytes());
    SynthesizeRun(SeededKey(tensor.name, 5), tensor.dtype, 0, absl::MakeSpan(expected));
    EXPECT_EQ(std::memcmp(expected.data(), view->data.data(), expected.size()), 0) << tensor.name;
  }
  auto config = ParseHfConfig(ReadRaw(out() + "/hf/config.json"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_hidden_layers, 2);
}

// The rules of Megatron's layout (Megatron-core, SelfAttention and VocabParallelEmbedding), written
// down once more by hand and without boxes.
TEST_F(PrepareTest, Qwen3ShardsAreSlicesOfTheCheckpoint) {
  const PrepareResult result = MustPrepare(Synthesize(qwen(), out()));
  auto opened = Checkpoint::Open(result.prepared.hf_dir);
  ASSERT_TRUE(opened.ok());
  const Checkpoint& hf = **opened;
  const HfConfig& c = qwen().config;
  const TrainParallelism& train = qwen().train;
  ASSERT_EQ(train.pp, 1);
  ASSERT_EQ(result.prepared.shards.size(), static_cast<size_t>(train.world));
  const int64_t h = c.hidden_size, d = c.head_dim;
  const int64_t per_group = c.num_attention_heads / c.num_key_value_heads;
  const int64_t vocab_unit = int64_t{train.vocab_divisor} * train.tp;
  const int64_t padded = (c.vocab_size + vocab_unit - 1) / vocab_unit * vocab_unit;
  for (int32_t rank = 0; rank < train.world; ++rank) {
    auto file = SafetensorsFile::Open(result.prepared.shards[rank]);
    ASSERT_TRUE(file.ok()) << file.status();
    const SafetensorsFile& shard = **file;
    const int64_t t = rank % train.tp, n = train.tp;

    std::string embedding = Get(hf, "model.embed_tokens.weight");
    embedding.resize(padded * h * 2);
    EXPECT_EQ(Get(shard, "embedding.word_embeddings.weight"),
              Rows(embedding, h, t * padded / n, (t + 1) * padded / n));
    EXPECT_EQ(Get(shard, "decoder.final_layernorm.weight"), Get(hf, "model.norm.weight"));
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
      const std::string m = absl::StrCat("decoder.layers.", layer, ".");
      const std::string f = absl::StrCat("model.layers.", layer, ".");
      const std::string q = Get(hf, f + "self_attn.q_proj.weight");
      const std::string k = Get(hf, f + "self_attn.k_proj.weight");
      const std::string v = Get(hf, f + "self_attn.v_proj.weight");
      std::string qkv;
      for (int64_t g = t * c.num_key_value_heads / n; g < (t + 1) * c.num_key_value_heads / n;
           ++g) {
        qkv += Rows(q, h, g * per_group * d, (g + 1) * per_group * d);
        qkv += Rows(k, h, g * d, (g + 1) * d) + Rows(v, h, g * d, (g + 1) * d);
      }
      EXPECT_EQ(Get(shard, m + "self_attention.linear_qkv.weight"), qkv);
      const int64_t heads = c.num_attention_heads * d;
      EXPECT_EQ(Get(shard, m + "self_attention.linear_proj.weight"),
                Columns(Get(hf, f + "self_attn.o_proj.weight"), heads, t * heads / n,
                        (t + 1) * heads / n));
      const int64_t i = c.intermediate_size;
      EXPECT_EQ(Get(shard, m + "mlp.linear_fc1.weight"),
                Rows(Get(hf, f + "mlp.gate_proj.weight"), h, t * i / n, (t + 1) * i / n) +
                    Rows(Get(hf, f + "mlp.up_proj.weight"), h, t * i / n, (t + 1) * i / n));
      EXPECT_EQ(Get(shard, m + "mlp.linear_fc2.weight"),
                Columns(Get(hf, f + "mlp.down_proj.weight"), i, t * i / n, (t + 1) * i / n));
      EXPECT_EQ(Get(shard, m + "mlp.linear_fc1.layer_norm_weight"),
                Get(hf, f + "post_attention_layernorm.weight"));
      EXPECT_EQ(Get(shard, m + "self_attention.linear_qkv.layer_norm_weight"),
                Get(hf, f + "input_layernorm.weight"));
      EXPECT_EQ(Get(shard, m + "self_attention.q_layernorm.weight"),
                Get(hf, f + "self_attn.q_norm.weight"));
    }
    EXPECT_EQ(shard.tensors().size(), 2u + 8u * c.num_hidden_layers);
  }
}

TEST_F(PrepareTest, ReplicasAreHardLinks) {
  ModelSpec spec = qwen();
  const PrepareResult result = MustPrepare(Synthesize(spec, out()));
  ASSERT_GT(spec.train.cp, 1);
  std::map<int32_t, std::set<ino_t>> inodes;
  for (int32_t rank = 0; rank < spec.train.world; ++rank) {
    struct stat s;
    ASSERT_EQ(stat(result.prepared.shards[rank].c_str(), &s), 0);
    EXPECT_EQ(s.st_nlink, static_cast<nlink_t>(spec.train.world / spec.train.tp));
    inodes[rank % spec.train.tp].insert(s.st_ino);
  }
  std::set<ino_t> all;
  for (const auto& [tp, of_tp] : inodes) {
    EXPECT_EQ(of_tp.size(), 1u);
    all.insert(of_tp.begin(), of_tp.end());
  }
  EXPECT_EQ(all.size(), static_cast<size_t>(spec.train.tp));
}

TEST_F(PrepareTest, IsRecognisedTheSecondTime) {
  const PrepareResult first = MustPrepare(Synthesize(qwen(), out()));
  EXPECT_GT(first.bytes_written, 0u);
  EXPECT_THAT(first.reason, HasSubstr("nothing was prepared"));
  const auto before = Tree(out());
  EXPECT_EQ(before.count("prepared.json"), 1u);
  EXPECT_EQ(before.count("preparing"), 0u);
  const PrepareResult second = MustPrepare(Synthesize(qwen(), out()));
  EXPECT_TRUE(second.already_done);
  EXPECT_EQ(second.bytes_written, 0u);
  EXPECT_EQ(second.reason, "");
  EXPECT_EQ(second.prepared.shards, first.prepared.shards);
  EXPECT_EQ(second.prepared.hf_dir, first.prepared.hf_dir);
  EXPECT_EQ(Tree(out()), before);
}

TEST_F(PrepareTest, AnythingDifferentOrDamagedIsRedone) {
  const auto redone = [&](const PrepareOptions& options) {
    const PrepareResult result = MustPrepare(options);
    EXPECT_FALSE(result.already_done);
    EXPECT_TRUE(OpenPrepared(out()).ok());
    return result.reason;
  };
  const PrepareOptions options = Synthesize(qwen(), out());
  redone(options);
  const auto good = Tree(out());
  PrepareOptions other = options;
  other.seed = 6;
  EXPECT_EQ(redone(other), "the seed differs");
  EXPECT_EQ(redone(options), "the seed differs");
  EXPECT_EQ(Tree(out()), good);
  other = options;
  other.spec.train.cp = 1;
  EXPECT_EQ(redone(other), "the model or its parallelism differs");
  redone(options);

  const std::string shard = out() + "/train/rank-00001.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  EXPECT_THAT(redone(options), AllOf(HasSubstr(shard), HasSubstr("bytes, not")));
  fs::remove(shard);
  EXPECT_THAT(redone(options), AllOf(HasSubstr(shard), HasSubstr("is missing")));
  std::string bytes = ReadRaw(shard);
  bytes[20] ^= 1;  // in the header
  fs::remove(shard);
  WriteRaw(shard, bytes);
  EXPECT_THAT(redone(options), AllOf(HasSubstr(shard), HasSubstr("another header")));
  WriteRaw(out() + "/prepared.json", "{");
  EXPECT_THAT(redone(options), HasSubstr("damaged"));
  EXPECT_EQ(Tree(out()), good);
}

// As a kill between any two steps leaves it: the mark, some files, perhaps temporary ones, no
// record.
TEST_F(PrepareTest, AnInterruptedRunIsNeverTakenForFinished) {
  const PrepareOptions options = Synthesize(qwen(), out());
  MustPrepare(options);
  const auto good = Tree(out());
  fs::remove(out() + "/prepared.json");
  WriteRaw(out() + "/preparing", "");
  fs::remove(out() + "/train/rank-00000.safetensors");
  WriteRaw(out() + "/train/rank-00000.safetensors.Abc123.xfertmp", "half");
  WriteRaw(out() + "/train/rank-99999.safetensors", "of a run with more ranks");
  WriteRaw(out() + "/hf/model-00001-of-00009.safetensors", "of a run with more files");
  WriteRaw(out() + "/hf/model.safetensors", "half");

  const absl::Status status = OpenPrepared(out()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(out()), HasSubstr("xferctl prepare")));
  EXPECT_FALSE(MustPrepare(options).already_done);
  EXPECT_EQ(Tree(out()), good);
}

TEST_F(PrepareTest, ARunThatFailsHalfwayCleansUp) {
  PrepareOptions options = Synthesize(qwen(), out());
  fs::create_directories(out());
  WriteRaw(out() + "/notes.txt", "the user's");
  // A directory stands where the second rank's file must go; rename fails.
  options.progress = [&](uint64_t, uint64_t, absl::string_view file) {
    if (file != "hf") fs::create_directories(out() + "/train/rank-00001.safetensors/in-the-way");
  };
  const absl::Status status = Prepare(options).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank-00001"));
  fs::remove_all(out() + "/train");
  EXPECT_EQ(Tree(out()).count("prepared.json"), 0u);
  for (const auto& [name, content] : Tree(out())) {
    EXPECT_TRUE(name == "notes.txt" || name == "preparing") << name;
  }
  options.progress = nullptr;
  EXPECT_FALSE(MustPrepare(options).already_done);
  EXPECT_EQ(ReadRaw(out() + "/notes.txt"), "the user's");
}

TEST_F(PrepareTest, LeavesOtherPeoplesFilesAlone) {
  fs::create_directories(out() + "/hf");
  WriteRaw(out() + "/hf/model.safetensors", "precious");
  const absl::Status status = Prepare(Synthesize(qwen(), out())).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(out() + "/hf"));
  EXPECT_EQ(ReadRaw(out() + "/hf/model.safetensors"), "precious");
  fs::remove(out() + "/hf/model.safetensors");

  MustPrepare(Synthesize(qwen(), out()));
  WriteRaw(out() + "/hf/tokenizer.json", "put there by hand");
  PrepareOptions other = Synthesize(qwen(), out());
  other.seed = 77;
  MustPrepare(other);
  EXPECT_EQ(ReadRaw(out() + "/hf/tokenizer.json"), "put there by hand");
}

TEST_F(PrepareTest, TwoAtOnceAreRefused) {
  fs::create_directories(out());
  const int fd = open(out().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  const absl::Status status = Prepare(Synthesize(qwen(), out())).status();
  close(fd);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another xferctl prepare"));
}

TEST_F(PrepareTest, ProgressCountsEveryByteOnce) {
  PrepareOptions options = Synthesize(qwen(), out());
  uint64_t last = 0, total = 0;
  options.progress = [&](uint64_t done, uint64_t of, absl::string_view) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, of);
    last = done;
    total = of;
  };
  const PrepareResult result = MustPrepare(options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(result.bytes_written, total);
}

TEST_F(PrepareTest, LargeCheckpointsAreSharded) {
  const auto one = Tree(MustPrepare(Synthesize(qwen(), out())).prepared.hf_dir);
  EXPECT_EQ(one.count("model.safetensors"), 1u);
  EXPECT_EQ(one.size(), 2u);
  PrepareOptions options = Synthesize(qwen(), dir_.File("sharded"));
  options.max_hf_file_bytes = 40'000;
  const PrepareResult result = MustPrepare(options);
  const std::string hf = result.prepared.hf_dir;
  const auto many = Tree(hf);
  const int files = static_cast<int>(many.size()) - 2;
  ASSERT_GT(files, 2);
  EXPECT_EQ(many.count(absl::StrFormat("model-%05d-of-%05d.safetensors", files, files)), 1u);
  const auto index = nlohmann::json::parse(many.at("model.safetensors.index.json"));
  auto table = BuildTensorTable(qwen().config);
  EXPECT_EQ(index["metadata"]["total_size"].get<int64_t>(), table->total_bytes());
  auto a = Checkpoint::Open(out() + "/hf");
  auto b = Checkpoint::Open(hf);
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ((*a)->names(), (*b)->names());
  for (const std::string& name : (*a)->names()) EXPECT_EQ(Get(**a, name), Get(**b, name));
  // The shards do not depend on how the checkpoint is cut into files.
  EXPECT_EQ(Tree(out() + "/train"), Tree(dir_.File("sharded") + "/train"));
  EXPECT_TRUE(MustPrepare(options).already_done);
}

TEST_F(PrepareTest, OpenPreparedGivesBackWhatWasMade) {
  const PrepareResult result = MustPrepare(Synthesize(qwen(), out()));
  auto prepared = OpenPrepared(out());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(ToJson(prepared->spec), ToJson(qwen()));
  EXPECT_TRUE(prepared->synthesized);
  EXPECT_EQ(prepared->seed, 5u);
  EXPECT_EQ(prepared->hf_dir, result.prepared.hf_dir);
  EXPECT_EQ(prepared->shards, result.prepared.shards);
  fs::remove(prepared->shards[2]);
  const absl::Status status = OpenPrepared(out()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank-00002"), HasSubstr("prepare")));
  EXPECT_TRUE(absl::IsNotFound(OpenPrepared(dir_.File("nowhere")).status()));
}

TEST_F(PrepareTest, RefusesContradictoryOptions) {
  const auto message = [](const PrepareOptions& options) {
    const absl::Status status = Prepare(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  PrepareOptions options = Synthesize(qwen(), out());
  options.hf_dir = "/somewhere";
  EXPECT_THAT(message(options), HasSubstr("not both"));
  options.synthesize = false;
  EXPECT_THAT(message(options), HasSubstr("tiny"));
  options.hf_dir = "";
  EXPECT_THAT(message(options), HasSubstr("either"));
  options = Synthesize(qwen(), "");
  EXPECT_THAT(message(options), HasSubstr("output directory"));
  EXPECT_FALSE(fs::exists(out()));
}

// Mixture of experts, latent attention, MTP, float32 buffers, pipeline stages: every rank's file is
// checked against the layout that the emulator will use.
class EveryPreset : public PrepareTest, public testing::WithParamInterface<std::string> {};

TEST_P(EveryPreset, IsPreparedWhole) {
  const ModelSpec spec = Tiny(GetParam(), 0);
  PrepareOptions options = Synthesize(spec, out());
  std::atomic<uint64_t> last = 0;
  options.progress = [&](uint64_t done, uint64_t, absl::string_view) { last = done; };
  const PrepareResult result = MustPrepare(options);
  EXPECT_EQ(result.bytes_written, last);
  ASSERT_EQ(result.prepared.shards.size(), static_cast<size_t>(spec.train.world));
  auto table = BuildTensorTable(spec.config);
  ASSERT_TRUE(table.ok());
  auto layout = MegatronLayout(spec, *table, spec.train.world - 1);
  ASSERT_TRUE(layout.ok()) << layout.status();
  auto file = SafetensorsFile::Open(result.prepared.shards.back());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), layout->tensors.size());
  EXPECT_TRUE(MustPrepare(Synthesize(spec, out())).already_done);
}

INSTANTIATE_TEST_SUITE_P(Small, EveryPreset,
                         testing::Values("Qwen3-4B", "GLM-4.7-Flash", "GLM-5_4layer"),
                         [](const auto& p) {
                           std::string name = p.param;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

class GivenDirectory : public PrepareTest {
 protected:
  GivenDirectory() { MustPrepare(Synthesize(qwen(), dir_.File("source"))); }
  std::string hf() const { return dir_.File("source") + "/hf"; }
  std::string config() const { return hf() + "/config.json"; }

  // Rewrites the checkpoint without tensor `without`, and with `extra`.
  void Rewrite(const std::string& without, std::vector<SafetensorsWriter::Entry> extra) {
    auto checkpoint = Checkpoint::Open(hf());
    ASSERT_TRUE(checkpoint.ok());
    std::vector<SafetensorsWriter::Entry> entries;
    for (const std::string& name : (*checkpoint)->names()) {
      if (name == without) continue;
      auto view = (*checkpoint)->Find(name);
      entries.push_back({name, view->dtype, view->shape});
    }
    const size_t kept = entries.size();
    entries.insert(entries.end(), extra.begin(), extra.end());
    auto writer = SafetensorsWriter::Create(hf() + "/model.safetensors", entries);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < kept; ++i) {
      auto from = (*checkpoint)->Find(entries[i].name)->data;
      std::memcpy((*writer)->Data(entries[i].name)->data(), from.data(), from.size());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  std::string Refusal(const PrepareOptions& options) {
    const absl::Status status = Prepare(options).status();
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(fs::exists(options.out_dir + "/train"));
    return std::string(status.message());
  }
};

TEST_F(GivenDirectory, IsUsedInPlace) {
  const PrepareOptions options = FromDirectory(qwen(), hf(), out());
  const PrepareResult result = MustPrepare(options);
  EXPECT_EQ(result.prepared.hf_dir, fs::canonical(hf()).string());
  EXPECT_FALSE(fs::exists(out() + "/hf"));
  EXPECT_EQ(Tree(out() + "/train"), Tree(dir_.File("source") + "/train"));
  EXPECT_TRUE(MustPrepare(options).already_done);
  auto prepared = OpenPrepared(out());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_FALSE(prepared->synthesized);
  EXPECT_EQ(prepared->hf_dir, result.prepared.hf_dir);

  // A source that has changed since is another source.
  const struct timespec times[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (hf() + "/model.safetensors").c_str(), times, 0), 0);
  EXPECT_THAT(std::string(OpenPrepared(out()).status().message()), HasSubstr("has changed since"));
  EXPECT_EQ(MustPrepare(options).reason, "the Hugging Face directory differs");
}

TEST_F(GivenDirectory, MustBeThisModel) {
  const std::string good = ReadRaw(config());
  const auto with = [&](const std::string& field, const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(good);
    json[field] = value;
    WriteRaw(config(), json.dump());
    return Refusal(FromDirectory(qwen(), hf(), out()));
  };
  EXPECT_THAT(with("num_hidden_layers", 3),
              AllOf(HasSubstr(config()), HasSubstr("num_hidden_layers is 3"), HasSubstr("has 2")));
  EXPECT_THAT(with("vocab_size", 7), HasSubstr("vocab_size is 7"));
  EXPECT_THAT(with("tie_word_embeddings", false), HasSubstr("tie_word_embeddings is false"));
  EXPECT_THAT(with("architectures", {"Qwen3MoeForCausalLM"}), HasSubstr(config()));
  WriteRaw(config(), "not json");
  EXPECT_THAT(Refusal(FromDirectory(qwen(), hf(), out())), HasSubstr(config()));
  fs::remove(config());
  EXPECT_THAT(Refusal(FromDirectory(qwen(), hf(), out())), HasSubstr(config()));
}

TEST_F(GivenDirectory, MustHaveEveryTensorAndNoOther) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const PrepareOptions options = FromDirectory(qwen(), hf(), out());
  Rewrite(name, {});
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr(hf()), HasSubstr(name)));
  Rewrite("", {{name, DType::kBF16, {3, 4}}});
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr(name), HasSubstr("BF16 [3, 4]")));
  auto table = BuildTensorTable(qwen().config);
  const Dims shape = (*table)[table->Find(name)].shape;
  Rewrite(name, {{name, DType::kF32, shape}});
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr(name), HasSubstr("is F32")));
  Rewrite(name, {{name, DType::kBF16, shape}, {"model.odd.weight", DType::kBF16, {3}}});
  EXPECT_THAT(Refusal(options), HasSubstr("'model.odd.weight'"));
  Rewrite("model.odd.weight", {{"model.layers.2.mlp.up_proj.weight", DType::kBF16, {3}}});
  EXPECT_THAT(Refusal(options), HasSubstr("'model.layers.2.mlp.up_proj.weight'"));
  Rewrite("model.layers.2.mlp.up_proj.weight",
          {{"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {3}}});
  EXPECT_FALSE(MustPrepare(options).already_done);
}

TEST_F(GivenDirectory, FirstLayersAreCopied) {
  ModelSpec one = qwen();
  one.config = *KeepLayers(qwen().config, 1);
  PrepareOptions options = FromDirectory(one, hf(), out());
  EXPECT_THAT(Refusal(options), HasSubstr("num_hidden_layers is 2"));
  options.cut = true;
  const PrepareResult result = MustPrepare(options);
  EXPECT_EQ(result.prepared.hf_dir, out() + "/hf");
  auto whole = Checkpoint::Open(hf());
  auto cut = Checkpoint::Open(out() + "/hf");
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_LT((*cut)->names().size(), (*whole)->names().size());
  for (const std::string& name : (*cut)->names()) EXPECT_EQ(Get(**cut, name), Get(**whole, name));
  EXPECT_EQ(ParseHfConfig(ReadRaw(out() + "/hf/config.json"))->num_hidden_layers, 1);
  EXPECT_TRUE(MustPrepare(options).already_done);

  // Never over its own source.
  options.out_dir = dir_.File("source");
  EXPECT_TRUE(absl::IsInvalidArgument(Prepare(options).status()));
  EXPECT_TRUE(OpenPrepared(dir_.File("source")).ok());
}

// A file system of one megabyte, where the user may mount one.
class SmallDisk : public PrepareTest {
 protected:
  void SetUp() override {
    fs::create_directories(mount_point());
    if (mount("tmpfs", mount_point().c_str(), "tmpfs", 0, "size=1m") != 0) {
      GTEST_SKIP() << "cannot mount a tmpfs here: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) umount2(mount_point().c_str(), MNT_DETACH);
  }
  std::string mount_point() const { return dir_.File("small"); }
  bool mounted_ = false;
};

TEST_F(SmallDisk, TooLittleSpaceIsFoundBeforeAnythingIsWritten) {
  const std::string target = mount_point() + "/out";
  const absl::Status status = Prepare(Synthesize(qwen(), target)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(target), HasSubstr("needs"), HasSubstr("are free")));
  EXPECT_TRUE(fs::is_empty(target));
}

TEST_F(SmallDisk, WriterFindsAFullDiskAtOnce) {
  const std::string path = mount_point() + "/f";
  auto fits = SafetensorsWriter::Create(path, {{"w", DType::kU8, {500'000}}});
  ASSERT_TRUE(fits.ok()) << fits.status();
  const absl::Status status =
      SafetensorsWriter::Create(mount_point() + "/g", {{"w", DType::kU8, {700'000}}}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("/g"), HasSubstr("700128 bytes")));
  EXPECT_TRUE((*fits)->Finish().ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(mount_point()), {}), 1);
}

}  // namespace
}  // namespace xfer
