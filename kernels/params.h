// One parameter struct per op, in the order in which a layer calls them. Pointers are in the
// backend's memory unless said otherwise; shapes stand in brackets. See batch.h for the letters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/calibration_cells.h"
#include "kernels/dtype.h"

namespace eta {

class Matrix;

// Activations of a step: rows x cols, rows `stride` elements apart. Elements are float32, except
// that the inputs of MatMul (what RmsNorm, attention and SwiGlu write, and SwiGlu's own input) have
// Backend::activation_dtype(); `data` then points to elements of that type.
struct TensorView {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  DType dtype = DType::kFloat32;

  float* row(int64_t i) const { return At(i * stride); }
  // Columns [begin, begin + count) of every row.
  TensorView Columns(int64_t begin, int64_t count) const {
    return {At(begin), rows, count, stride, dtype};
  }
  TensorView Rows(int64_t begin, int64_t count) const {
    return {row(begin), count, cols, stride, dtype};
  }

  bool operator==(const TensorView&) const = default;

 private:
  float* At(int64_t element) const {
    const int64_t bytes = dtype == DType::kFloat32 ? 4 : 2;
    return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(data) + element * bytes);
  }
};

// The shape of the KV cache, the same in every layer.
struct KvGeometry {
  int32_t num_kv_heads = 0;       // HKV
  int32_t head_dim = 0;           // d
  int32_t block_size = 64;        // b, tokens per block
  int32_t sub_block = 4;          // tokens per sub-block of the deviation's envelope; 0 = flat
  DType dtype = DType::kFloat16;  // float32, float16, bfloat16 or float8_e4m3
  DType index_dtype = DType::kFloat16;  // of mu and sigma in a record: float16 or int8

  bool operator==(const KvGeometry&) const = default;
};

// Bytes that one block takes in one layer, all KV heads; the arrangement inside is the backend's.
struct KvLayout {
  size_t tile_bytes = 0;    // K and V
  size_t record_bytes = 0;  // index record: mu, sigma, M and the running V total
};

// One layer's part of the block pool: [num_blocks] tiles and records.
struct KvLayerView {
  std::byte* tiles = nullptr;
  std::byte* records = nullptr;

  bool operator==(const KvLayerView&) const = default;
};

enum class Gate : uint8_t { kNone, kSilu };  // kNone: logits are not tempered

struct EmbedParams {
  const Matrix* table;  // [V, D]
  TensorView out;       // [R, D], R from the planned batch
};

struct RmsNormParams {
  TensorView x;         // [rows, D]
  const float* weight;  // [D]
  float eps;
  std::span<const int32_t> rows;  // host; rows of x to take, in order; empty: all of them
  TensorView out;                 // [rows, D]
};

// out = x * weight^T (+ out, if accumulate). On the reference and the CPU, summation over the inner
// dimension runs in one fixed order per output element, whatever the number of rows, so a row never
// feels its batch; on CUDA the library picks a kernel per number of rows, and last bits may differ.
struct MatMulParams {
  TensorView x;          // [rows, K]
  const Matrix* weight;  // [N, K]
  TensorView out;        // [rows, N]
  bool accumulate;
};

// How Llama 3 stretches the rotation for contexts beyond those it was first trained on: a pair that
// turns at least `high_freq_factor` times in `original_context` tokens stays as it is, one that
// turns at most `low_freq_factor` times turns `factor` times slower, those between are blended
// linearly in their turns. The default changes no bit of any frequency.
struct RopeScaling {
  double factor = 1.0;           // at least 1
  double low_freq_factor = 1.0;  // below high_freq_factor
  double high_freq_factor = 4.0;
  int32_t original_context = 0;  // tokens

  // Of a frequency in turns per token.
  constexpr double Scaled(double frequency) const {
    const double kept = (original_context * frequency - low_freq_factor) /
                        (high_freq_factor - low_freq_factor);  // share that stays as it is
    if (kept >= 1.0) return frequency;
    return kept <= 0.0 ? frequency / factor : frequency * (kept + (1.0 - kept) / factor);
  }

  bool operator==(const RopeScaling&) const = default;
};

// Half-split rotation in place (Hugging Face LLaMA's): pairs (i, i + d/2), angle
// position * theta^(-2i/d), the frequency scaled; position and theta from the planned batch.
struct RopeParams {
  TensorView q;  // [R, HQ * d]
  TensorView k;  // [R, HKV * d]
  int32_t head_dim;
  RopeScaling scaling{};

  bool operator==(const RopeParams&) const = default;
};

// Stores the rows' K and V, rounded to the cache's type, and writes the record of every block that
// this fills (eta-semantics.md, "Block index"). The running V total of block j is the sum of V, as
// stored, over positions 0 .. (j+1)*b - 1, built as total(j-1) + sum(block j): it depends on the
// keys alone, not on how the prompt was cut, and is right for shared prefixes too.
struct AppendKvParams {
  TensorView k;  // [R, HKV * d], post-RoPE
  TensorView v;  // [R, HKV * d]
  KvGeometry geometry;
  KvLayerView kv;

  bool operator==(const AppendKvParams&) const = default;
};

// thresholds = q W^T + b (eta-semantics.md, "Threshold predictor"), float32; rows of sequences with
// frozen thresholds copy frozen[layer] instead and do no predictor work. weight null: only frozen
// rows are written, the rest are set to 0 (a plain checkpoint's gate does not read them).
struct ThresholdParams {
  int32_t layer;
  TensorView q;         // [R, HQ * d], post-RoPE
  const float* weight;  // [HQ, HQ * d]
  const float* bias;    // [HQ]
  TensorView out;       // [R, HQ]

  bool operator==(const ThresholdParams&) const = default;
};

// Blocks that decode rows read: per (row, KV head) an ascending list of block ordinals (index into
// the sequence's block table) with the heads of the group that admitted each. Full blocks only; the
// partial tail is always attended and never listed. Rows of prefill sequences have count 0. Of rows
// that admit all only the count is sure to be written: their list is every full block, all heads.
struct BlockSelection {
  uint32_t* blocks = nullptr;  // [R, HKV, capacity]
  uint32_t* heads = nullptr;   // [R, HKV, capacity], bit g = query head g of the group
  int32_t* counts = nullptr;   // [R, HKV]
  int64_t capacity = 0;        // at least N of every decode row

  bool operator==(const BlockSelection&) const = default;
};

// What the decode rows of one layer read, host memory, valid after Finish(): tokens per row
// (eta-semantics.md, "What is counted"). Rows of prefill sequences are left untouched.
struct AttentionCounts {
  int32_t* tokens_attended = nullptr;  // [R, HQ]
  int32_t* tokens_read = nullptr;      // [R, HKV]

  bool operator==(const AttentionCounts&) const = default;
};

// Selection steps 1-4 of eta-semantics.md for every decode row.
struct SelectBlocksParams {
  int32_t layer;          // of the sequences' head_z
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;  // s = 1/sqrt(d)
  BlockSelection selection;
  AttentionCounts counts;

  bool operator==(const SelectBlocksParams&) const = default;
};

// Steps 5-7 for decode rows; dense causal gated attention for prefill rows. Each op handles the
// rows of its kind and leaves the others alone. Online softmax merges in one fixed order per row.
struct AttentionParams {
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;
  Gate gate;
  float beta;
  BlockSelection selection;  // decode only: what SelectBlocks wrote last, of the same rows
  TensorView out;            // [R, HQ * d]

  bool operator==(const AttentionParams&) const = default;
};

// Of the keys with S >= tau_eff of each decode row, how many there are and how many stand in
// admitted blocks (or the tail): the recall of the selection. Reads every key: for evaluation only.
struct RecallParams {
  AttentionParams attention;
  int64_t* above;           // [HQ], added to; host
  int64_t* above_admitted;  // [HQ], added to; host
};

// What calibration keeps of the prefill rows of sequences with `calibrate` (calibration_cells.h),
// added to cells that start at 0. The thresholds are those that prefill gates with; z counts as if
// the rows were decode rows that do not admit all. Rows of all calls together: at most
// kMaxCalibrationRows.
struct CalibrationParams {
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;
  Gate gate;  // kNone: the gate's sum stays 0
  float beta;
  ScoreBins bins;
  uint64_t* cells;  // [HQ, CalibrationCells(bins).size()]

  bool operator==(const CalibrationParams&) const = default;
};

// out = silu(gate) * up
struct SwiGluParams {
  TensorView gate_up;  // [R, 2F]: gate in the first F columns, up in the rest
  TensorView out;      // [R, F]

  bool operator==(const SwiGluParams&) const = default;
};

// Token `id` occurred `prompt` times in the prompt and `output` times in the answer so far.
struct TokenCount {
  int32_t id;
  int32_t prompt;
  int32_t output;
};

struct LogitBias {
  int32_t id;
  float bias;  // -infinity forbids the token
};

struct TokenLogprob {
  int32_t id;
  float logprob;
};

// One draw. The model's log-probabilities are taken from the logits as they come; then bias,
// repetition, presence and frequency penalty, temperature, top_k, top_p and min_p apply, in this
// order, and `uniform` picks from what remains in descending order of probability (ties: lowest
// id).
struct SampleRow {
  int32_t logits_row = 0;
  float temperature = 1.0f;  // 0: greedy (ties: lowest id), after bias and penalties
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // divides positive logits, multiplies negative ones
  float presence_penalty = 0.0f;    // counts the answer only, as does frequency
  float frequency_penalty = 0.0f;
  double uniform = 0.0;  // in [0, 1)
  std::span<const TokenCount> counts{};
  std::span<const LogitBias> bias{};
  int32_t forced = -1;        // a known token: nothing is drawn, only log-probabilities taken
  int32_t num_logprobs = -1;  // alternatives wanted; 0: the token's own only; -1: none
  // Filled in:
  int32_t token = -1;
  bool finite = true;  // false: NaN, +infinity or nothing but -infinity: no token was drawn
  float logprob = 0.0f;
  std::span<TokenLogprob> top{};  // [num_logprobs], descending
};

struct SampleParams {
  TensorView logits;          // [rows, V]; left as they came
  std::span<SampleRow> rows;  // host
};

}  // namespace eta
