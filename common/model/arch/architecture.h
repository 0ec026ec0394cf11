// An architecture as tables: which tensors a layer has under their Hugging Face names, and which
// tensors each framework makes of them. The layout functions (common/layout) only interpret these
// rows.
//
// To add an architecture: one file here that defines an Architecture (from the blocks of blocks.h,
// or with rows of its own), its name in the list of architecture.cc, and a preset.
#ifndef XFER_COMMON_MODEL_ARCH_ARCHITECTURE_H_
#define XFER_COMMON_MODEL_ARCH_ARCHITECTURE_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/dtype.h"
#include "common/model/model.h"

namespace xfer {

// A size or a condition as a formula over the config.
using SizeFn = int64_t (*)(const HfConfig&);
using WhenFn = bool (*)(const HfConfig&);

// Stands for the expert's number in a name: the global one in Hugging Face names, the rank's own in
// a framework's. A row whose names have it stands for one tensor an expert.
inline constexpr absl::string_view kExpert = "{e}";

// A tensor of one layer; `name` follows "model.layers.N.".
struct HfTensor {
  absl::string_view name;
  SizeFn rows;
  SizeFn cols = nullptr;  // nullptr: the tensor has one dimension
  bool linear = false;    // fp8 checkpoints quantise it
  bool float32 = false;   // float32 whatever the model's own dtype
  WhenFn when = nullptr;  // nullptr: always
};

// Among which ranks a source is cut into equal parts. The first two groups are Megatron's, the
// others sglang's.
enum class Shard : uint8_t {
  kWhole,         // not cut: every rank has it all
  kTensor,        // Megatron's tensor parallel ranks
  kExpertTensor,  // Megatron's expert tensor parallel ranks
  kAttention,     // the attention TP group inside an engine
  kKvHeads,    // likewise, but a KV head is kept by several ranks where there are more ranks than
               // heads
  kEngine,     // all ranks of an engine, whatever data parallel attention does
  kDenseMlp,   // all ranks of an engine, or none with moe_dense_tp = 1
  kMoeTensor,  // the ranks that share an engine's expert rank
};
inline constexpr int kShards = 8;

// How the sources' parts stand in the framework's tensor.
enum class Order : uint8_t {
  kStacked,    // one behind the other along the first dimension
  kQkvGroups,  // interleaved by KV group: the group's queries, its key, its value
  kHalfSwap,   // the two halves of every indexer head swapped (where the indexer's rope is
               // interleaved)
};

struct Source {
  absl::string_view hf;  // a name of the layer's HfTensor rows
  Shard shard = Shard::kWhole;
};

// A tensor as a framework has it. `name` follows the framework's layer prefix. Where the sources
// are one an expert but `name` has no {e}, the rank's experts are slots of a leading dimension.
struct FrameworkTensor {
  absl::string_view name;
  std::array<Source, 3> sources;  // those with an empty name are unused
  int cut = 0;                    // dimension of the source that `shard` cuts
  Order order = Order::kStacked;
  bool float32 = false;          // held as float32 though the checkpoint has another type
  absl::string_view fused = {};  // name of the atomic update unit inside the layer; empty: none
  WhenFn when = nullptr;
};

// Rows that go together.
struct Block {
  absl::Span<const HfTensor> hf;
  absl::Span<const FrameworkTensor> megatron;
  absl::Span<const FrameworkTensor> sglang;
};

struct Architecture {
  enum class QkNorm : uint8_t { kNever, kAlways, kUseQkNormField };

  absl::string_view name;  // architectures[0] of config.json
  absl::Span<const Block* const> dense_layer;
  absl::Span<const Block* const> moe_layer;  // empty: the architecture has no experts
  // What no field of config.json says.
  bool mla = false;
  bool indexer = false;
  QkNorm qk_norm = QkNorm::kNever;
  bool qkv_bias = false;            // attention_bias may be true (and then o_proj has no bias)
  bool correction_bias = false;     // the router has e_score_correction_bias
  bool first_k_dense = false;       // config.json has first_k_dense_replace
  bool mtp_embed_and_head = false;  // an MTP layer stores copies of the embedding and the head
  bool dense_tp_setting = false;    // sglang's moe_dense_tp_size reaches the dense layers

  absl::Span<const Block* const> layer(bool moe) const { return moe ? moe_layer : dense_layer; }
};

// nullptr where it is unknown. Lives for ever.
const Architecture* FindArchitecture(absl::string_view name);
// "A, B, C", for messages.
std::string KnownArchitectures();

}  // namespace xfer

#endif  // XFER_COMMON_MODEL_ARCH_ARCHITECTURE_H_
