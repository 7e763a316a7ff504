// One parameter struct per op, in the order in which a layer calls them. Pointers are in the
// backend's memory unless a comment says host. Shapes are in brackets; batch.h explains the
// letters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/calibration_cells.h"
#include "kernels/dtype.h"
#include "kernels/rope_scaling.h"

namespace eta {

class Matrix;

// Activations of a step: rows x cols, with rows `stride` elements apart. Elements are float32, with
// one exception: the inputs of MatMul have Backend::activation_dtype(). These are the outputs of
// RmsNorm, attention and SwiGlu, and the input of SwiGlu. `data` then points to elements of that
// type.
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

// What a block's record says of its keys (eta-semantics.md, "Block index"). kMoment: mean,
// deviation and largest norm. kOutlier: the key that stands out, and mean and deviation of the
// others.
enum class IndexKind : uint8_t { kMoment, kOutlier };

// The shape of the KV cache, the same in every layer.
struct KvGeometry {
  int32_t num_kv_heads = 0;       // HKV
  int32_t head_dim = 0;           // d
  int32_t block_size = 64;        // b, tokens per block
  int32_t sub_block = 4;          // tokens per sub-block of the deviation's envelope; 0 = flat
  DType dtype = DType::kFloat16;  // float32, float16, bfloat16 or float8_e4m3
  IndexKind index = IndexKind::kMoment;
  // Of the vectors in a record: float16 or int8 (kMoment), int8 (kOutlier). The reference also has
  // float32 (kOutlier): records that are not rounded, for tests.
  DType index_dtype = DType::kFloat16;

  bool operator==(const KvGeometry&) const = default;
};

// Bytes of one block in one layer, all KV heads. The backend chooses the arrangement inside.
struct KvLayout {
  size_t tile_bytes = 0;    // K and V
  size_t record_bytes = 0;  // index record and the running V total
};

// One layer's part of the block pool: [num_blocks] tiles and [num_blocks] records. With them, for
// records of kOutlier, what the model's index_metric.safetensors has for the layer.
struct KvLayerView {
  std::byte* tiles = nullptr;
  std::byte* records = nullptr;
  const float* index_metric = nullptr;  // C [HKV, d, d], symmetric; null: identity
  const float* index_centre = nullptr;  // mean key [HKV, d]; null: zero

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
  std::span<const int32_t> rows;  // host; the rows of x to normalise, in order; empty: all rows
  TensorView out;                 // [rows, D]
};

// out = x * weight^T (+ out, if accumulate). On the reference and the CPU each output element sums
// over K in one fixed order, so a row's bits do not depend on the other rows. On CUDA the library
// picks a kernel by the number of rows, and last bits may differ.
struct MatMulParams {
  TensorView x;          // [rows, K]
  const Matrix* weight;  // [N, K]
  TensorView out;        // [rows, N]
  bool accumulate;
  // Row i is row i of the step. Then a CPU with AMX multiplies prefill rows on its tiles: the order
  // of a row's sum follows its kind, never its neighbours.
  bool rows_of_step = false;
};

// x += bias, in every row: float32, in place.
struct AddBiasParams {
  TensorView x;       // [rows, N]
  const float* bias;  // [N]

  bool operator==(const AddBiasParams&) const = default;
};

// Scales every head of q and k to a root mean square of 1 and multiplies it with the weight, in
// place: RmsNorm over the head's d elements. A head's sum runs in an order that d alone fixes.
struct NormHeadsParams {
  TensorView q;           // [rows, HQ * d]
  TensorView k;           // [rows, HKV * d]
  const float* q_weight;  // [d]
  const float* k_weight;  // [d]
  int32_t head_dim;
  float eps;

  bool operator==(const NormHeadsParams&) const = default;
};

// Rotates q and k in place by their rows' positions (eta-semantics.md, "Model"): half-split as in
// Hugging Face's LLaMA. The pair (i, i + d/2) turns by position * theta^(-2i/d), the frequency
// scaled, and grows by scaling.attention_factor. Position and theta are those of the planned batch.
struct RopeParams {
  TensorView q;  // [R, HQ * d]
  TensorView k;  // [R, HKV * d]
  int32_t head_dim;
  RopeScaling scaling{};

  bool operator==(const RopeParams&) const = default;
};

// Stores the rows' K and V, rounded to the cache's type, and writes the record of every block that
// this fills (eta-semantics.md, "Block index"). The running V total of block j is the sum of the
// stored V over positions 0 .. (j+1)*b - 1, built as total(j-1) + sum(block j). So it depends on
// the tokens alone, not on how the prompt was cut, and is right for shared prefixes too.
struct AppendKvParams {
  TensorView k;  // [R, HKV * d], post-RoPE
  TensorView v;  // [R, HKV * d]
  KvGeometry geometry;
  KvLayerView kv;

  bool operator==(const AppendKvParams&) const = default;
};

// thresholds = q W^T + b in float32 (eta-semantics.md, "Model"). Rows of sequences with frozen
// thresholds copy frozen[layer] instead and cost no predictor work. Without a weight only frozen
// rows are copied and all others become 0: a plain checkpoint's gate does not read them, and of
// rows with relative thresholds SelectBlocks writes them.
struct ThresholdParams {
  int32_t layer;
  TensorView q;         // [R, HQ * d], post-RoPE
  const float* weight;  // [HQ, HQ * d]
  const float* bias;    // [HQ]
  TensorView out;       // [R, HQ]

  bool operator==(const ThresholdParams&) const = default;
};

// The blocks that decode rows read: per (row, KV head) an ascending list of block ordinals, each
// with the heads of the group that attend to it: those that admitted it, or with shared reads all
// of the group. An ordinal is an index into the sequence's block
// table. Only full blocks are listed; the partial tail is always attended. Rows of prefill
// sequences have count 0 and need no list: the first `rows` rows of the step have one, and all
// decode rows must be among them. For a row that admits all, only the count is sure to be written,
// since its list is every full block with all heads.
//
// Of rows with confirmed reads SelectBlocks also writes what each head rescued. DecodeAttention
// then replaces the masks by the heads whose softmax saw the block; 0: its V was not read.
struct BlockSelection {
  uint32_t* blocks = nullptr;  // [rows, HKV, capacity]
  uint32_t* heads = nullptr;   // [rows, HKV, capacity], bit g = head g of the group attends
  int32_t* counts = nullptr;   // [R, HKV]
  int64_t capacity = 0;        // at least N of every decode row
  int64_t rows = 0;
  int32_t* rescued = nullptr;  // [rows, HQ], the ordinal that a head rescued; -1: none

  bool operator==(const BlockSelection&) const = default;
};

// The full blocks that rows of sparse prefill attend to: per (row, query head) a mask over block
// ordinals, bit j % 64 of word j / 64. With shared reads the heads of a group have one mask, that
// of what any of them admitted. The partial tail is always attended. All `words` words of these
// rows are written; bits from N on are 0. Words of other rows are undefined.
struct PrefillSelection {
  uint64_t* admitted = nullptr;  // [R, HQ, words]; null: no row is of sparse prefill
  int64_t words = 0;             // at least ceil(N / 64) of every row of sparse prefill

  bool operator==(const PrefillSelection&) const = default;
};

// Rows of sparse prefill that read the cache together: those at positions 64k .. 64k + 63.
inline constexpr int32_t kPrefillTileRows = 64;

// What the rows of one layer read, in tokens per row (eta-semantics.md, "What is counted").
// tokens_attended counts what each head admitted itself, with shared reads too.
// values_read counts the tokens whose V was read: SelectBlocks writes what it writes as
// tokens_read, and of rows with confirmed reads DecodeAttention writes what it read.
// SelectBlocks writes decode rows, SelectPrefillBlocks those of sparse prefill. Of these a tile's
// tokens read stand at the tile's first row in the step, and 0 at its other rows; values read are
// the same. Rows of full prefill are left untouched. Host memory, valid after Finish().
struct AttentionCounts {
  int32_t* tokens_attended = nullptr;  // [R, HQ]
  int32_t* tokens_read = nullptr;      // [R, HKV]
  int32_t* values_read = nullptr;      // [R, HKV]

  bool operator==(const AttentionCounts&) const = default;
};

// Steps 1 to 5 of eta-semantics.md, "Selection", for every decode row. Of rows with relative
// thresholds it writes Lhat + c, the estimated log-sum-exp of the row and the constant, into
// `thresholds`; other rows' are read.
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

// What SelectBlocks does, of blocks that the host chose: for every decode row it packs the masks
// into lists and counts. Nothing is pinned or rescued beyond them. For evaluation.
struct ListBlocksParams {
  TensorView q;           // [R, HQ * d]
  const uint32_t* heads;  // host; [R, HKV, selection.capacity], bit g = head g of the group admits
                          // the full block of this ordinal
  int32_t num_query_heads;
  KvGeometry geometry;
  BlockSelection selection;
  AttentionCounts counts;

  bool operator==(const ListBlocksParams&) const = default;
};

// Steps 1 to 5 of eta-semantics.md, "Selection", for every row of sparse prefill ("Sparse
// prefill"), each over its own T. Thresholds are read and written as by SelectBlocks.
struct SelectPrefillParams {
  int32_t layer;          // of the sequences' head_z
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;  // s = 1/sqrt(d)
  PrefillSelection selection;
  AttentionCounts counts;

  bool operator==(const SelectPrefillParams&) const = default;
};

// DecodeAttention: steps 6 and 7 of eta-semantics.md, "Selection", for decode rows, and "Confirmed
// reads".
// PrefillAttention: causal gated attention for prefill rows: over every key, or of sparse prefill
// by steps 6 and 7 over the blocks of `prefill` and the tail. Each op leaves rows of the other kind
// alone. Online softmax merges in one fixed order per row.
struct AttentionParams {
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;
  Gate gate;
  float beta;
  BlockSelection selection;  // decode only: the output of the last SelectBlocks, same rows
  TensorView out;            // [R, HQ * d]
  // Decode only, with confirmed reads: AttentionCounts::values_read of the same SelectBlocks.
  int32_t* values_read = nullptr;  // [R, HKV], host
  // Prefill only: the output of the last SelectPrefillBlocks, same rows. REQUIRES: `admitted` is
  // not null if a row is of sparse prefill.
  PrefillSelection prefill{};

  bool operator==(const AttentionParams&) const = default;
};

// Counts of each decode row's keys with S >= tau_eff, and of those of them that are in admitted
// blocks or the tail. Their quotient is the recall of the selection. The op reads every key, so it
// is for evaluation only.
struct RecallParams {
  AttentionParams attention;
  int64_t* above;           // [HQ], added to; host
  int64_t* above_admitted;  // [HQ], added to; host
};

// What chosen decode rows would have had from full attention, beside what they got. Per query head:
// `mass`, the share of full attention's softmax that lies on keys which the head attended to, and
// `error`, |out - full| / |full| over the head's d outputs (0 where |full| is 0). The op follows
// the DecodeAttention of the same step and reads every key of the chosen rows.
struct ShadowParams {
  AttentionParams attention;      // as DecodeAttention had it
  std::span<const int32_t> rows;  // host; decode rows of the step, ascending
  float* mass;                    // [rows.size(), HQ], host, valid after Finish()
  float* error;                   // [rows.size(), HQ], likewise
};

// Adds the counts of calibration_cells.h over the prefill rows of sequences with `calibrate` to
// cells that start at 0. The thresholds are those that gate prefill. z is counted as if the rows
// were decode rows that do not admit all. All calls together: at most kMaxCalibrationRows rows.
struct CalibrationParams {
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;
  Gate gate;  // kNone: the sum of gates stays 0
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

// One draw. The log-probabilities are those of the model's logits, before any change. Then bias,
// repetition, presence and frequency penalty, temperature, top_k, top_p and min_p apply, in this
// order. `uniform` picks from the remaining tokens in descending order of probability (ties: lowest
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
  int32_t forced = -1;        // a known token: only its log-probabilities are computed
  int32_t num_logprobs = -1;  // alternatives wanted; 0: the token's own only; -1: none
  // The op fills in:
  int32_t token = -1;
  bool finite = true;  // false: NaN, +infinity, or every logit -infinity: no token was drawn
  float logprob = 0.0f;
  std::span<TokenLogprob> top{};  // [num_logprobs], descending
};

struct SampleParams {
  TensorView logits;          // [rows, V]; not changed
  std::span<SampleRow> rows;  // host
};

}  // namespace eta
