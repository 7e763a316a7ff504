// The rows of one step, as kernels see them: ragged, paged, in plain structs without ownership.
//
// Shape letters used everywhere: R rows of the step (one token each), S sequences, L layers,
// D model_dim, F ffn_dim, V vocab_size, HQ query heads, HKV key-value heads, G = HQ / HKV group
// size, d head_dim, b block_size (tokens per KV block), T keys of a row (kv_len), N = floor(T/b).
#pragma once

#include <cstdint>
#include <span>

namespace eta {

// How a row attends: prefill reads every causal key, or attends to the blocks it selects
// (IsSparsePrefill); decode reads the blocks it selects.
enum class RowKind : uint8_t { kPrefill, kDecode };

enum class Gate : uint8_t { kNone, kSilu };  // kNone: logits are not tempered

// Operating point of one sequence (eta-semantics.md, "Selection" and "Defaults").
struct AttentionOptions {
  float offset = 0.0f;          // a: tau_eff = tau - a; larger admits more
  float z = 1.5f;               // width of the bound in deviations
  int32_t pinned_blocks = 2;    // lwb: last full blocks, always admitted
  int32_t sink_blocks = 0;      // first full blocks, always admitted
  int32_t rescue_chunk = 128;   // c: full blocks among which an empty head rescues its best one
  bool uniform_floor = true;    // pruned keys keep weight exp(0) (needs the SiLU gate)
  bool shared_reads = false;    // a head attends to all blocks that were read for its group
  bool confirm = false;         // V is read only of blocks whose true scores reach the threshold
  bool admit_all = false;       // full attention: every block is admitted, nothing is pruned
  bool sparse_prefill = false;  // prefill rows attend to the blocks that they admit
  // Thresholds are the row's estimated log-sum-exp plus relative_c, against a block's estimated
  // mass ("Relative thresholds"). REQUIRES: no gate, IndexKind::kOutlier.
  bool relative = false;
  float relative_c = -4.3f;  // c
};

// Full blocks that are read in any case: sinks and pinned ones, at most kMaxAlwaysRead of each.
inline constexpr int32_t kMaxAlwaysRead = 1024;
inline int32_t NumAlwaysRead(const AttentionOptions& options) {
  return options.sink_blocks + options.pinned_blocks;
}
// Whether full block `ordinal` of `count` is one of them.
inline bool IsAlwaysRead(const AttentionOptions& options, int32_t ordinal, int32_t count) {
  return ordinal < options.sink_blocks || ordinal >= count - options.pinned_blocks;
}

// The consecutive rows of one sequence in a step. Row i stands at position `position + i` and
// attends to T = position + i + 1 keys, its own included. K and V of all rows are appended before
// any row attends. So the last block that a row reads may already hold K and V of later rows.
struct SequenceRows {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t position = 0;
  RowKind kind = RowKind::kDecode;
  float rope_theta = 0.0f;  // base of the rotation, fixed per request
  AttentionOptions attention{};
  const float* frozen_thresholds = nullptr;  // [L, HQ], host; null: the predictor's
  const float* head_z = nullptr;             // [L, HQ], host; null: attention.z for every head
  // Keys whose gated logit is 0 (eta-semantics.md, "Special keys"): bit t % 64 of word t / 64 is
  // key t. Keys beyond the last word are not tempered. Host; read with the SiLU gate only.
  std::span<const uint64_t> tempered{};
  bool calibrate = false;  // sequence of prefill rows over which CollectCalibration counts
  std::span<const int32_t> block_table{};  // [ceil((position + num_rows) / b)] physical blocks
  // Tables 1, 2, ... of a model whose layers come in several groups, each as block_table, which is
  // table 0. KvLayerView::table says which one a layer takes. Blocks that lie wholly before the
  // window of the sequence's first row may be -1 in a table of window layers: they are not read.
  std::span<const std::span<const int32_t>> more_tables{};

  std::span<const int32_t> table(int32_t idx) const {
    return idx == 0 ? block_table : more_tables[idx - 1];
  }
};

// Whether the rows of a sequence are of sparse prefill (eta-semantics.md, "Sparse prefill").
inline bool IsSparsePrefill(const SequenceRows& sequence) {
  return sequence.kind == RowKind::kPrefill && sequence.attention.sparse_prefill &&
         !sequence.attention.admit_all && !sequence.calibrate;
}

// The first key that a row at `position` attends to in a layer with a window of `window` keys; 0:
// no window.
constexpr int32_t WindowBegin(int32_t position, int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

struct BatchView {
  std::span<const int32_t> tokens;          // [R]
  std::span<const SequenceRows> sequences;  // [S], row ranges ascending, disjoint, covering [0, R)
  int32_t num_rows() const { return static_cast<int32_t>(tokens.size()); }
};

}  // namespace eta
