// One layer's attention over a ragged step, run on any backend through the ops in the model's
// order, with all results that can be compared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/calibration_cells.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {

struct SequenceCase {
  RowKind kind = RowKind::kDecode;
  int32_t position = 0;  // keys already in the cache before the step
  int32_t num_rows = 1;
  AttentionOptions attention;
  HostTensor k;                    // [position + num_rows, HKV * d]
  HostTensor v;                    // [position + num_rows, HKV * d]
  std::vector<float> thresholds;   // [HQ]; empty: the predictor of the case gives them
  std::vector<float> head_z;       // [HQ]; empty: attention.z for every head
  std::vector<uint64_t> tempered;  // as in SequenceRows
  bool calibrate = false;          // prefill rows over which cells are collected
  // A forked prefix: the first `shared_blocks` blocks are those of sequence `parent`. The parent
  // comes earlier, shares nothing itself, and holds the same keys and values there before the step.
  int32_t parent = -1;
  int32_t shared_blocks = 0;

  int32_t num_keys() const { return position + num_rows; }
  // Whether its rows are of sparse prefill (IsSparsePrefill).
  bool sparse_prefill() const {
    return kind == RowKind::kPrefill && attention.sparse_prefill && !attention.admit_all &&
           !calibrate;
  }
  bool selects() const { return kind == RowKind::kDecode || sparse_prefill(); }
  float z(int32_t query_head) const {
    return head_z.empty() ? attention.z : head_z[static_cast<size_t>(query_head)];
  }
};

// Keys [rows, cols] whose mean changes from block to block, so that blocks differ in what they are
// worth.
HostTensor DriftingKeys(Random& random, int64_t rows, int64_t cols, int32_t block_size);

struct AttentionCase {
  KvGeometry geometry;
  int32_t num_query_heads = 1;
  Gate gate = Gate::kSilu;
  float beta = 5.0f;
  ScoreBins bins;
  HostTensor index_metric;  // [HKV * d, d]; empty: none
  HostTensor index_centre;  // [HKV, d]; empty: none
  std::vector<SequenceCase> sequences;
  HostTensor q;                       // [R, HQ * d], the sequences' rows one after another
  HostTensor predictor_weight;        // [HQ, HQ * d]; empty: no sequence needs one
  std::vector<float> predictor_bias;  // [HQ]
  // A layer with a window: it has no records, blocks before the window of a sequence's first row
  // are gone before the step, and both attentions alone run.
  int32_t window = 0;
  std::vector<float> sinks;  // learned, [HQ]; empty: none
  int32_t table = 0;         // which block table is the layer's; the others are of no use
  uint64_t seed = 0;         // of what must not matter: physical blocks, the cut of the history

  int32_t group() const { return num_query_heads / geometry.num_kv_heads; }
  float softmax_scale() const;
  std::string Describe() const;
};

// A block that a row reads, with the query heads of the group that attend to it: after
// confirmation, if reads are confirmed.
using SelectedBlock = std::pair<uint32_t, uint32_t>;

// Rows of full prefill have no selection, and counts of -1, and so have all rows with a window.
// What a row of sparse prefill read is here what it would have read alone, from its masks; Run()
// expects the tiles' counts to fit them.
struct AttentionResult {
  HostTensor out;                                     // [R, HQ * d]
  std::vector<std::vector<SelectedBlock>> selection;  // [R * HKV]
  std::vector<int32_t> tokens_attended;               // [R * HQ]
  std::vector<int32_t> tokens_read;                   // [R * HKV]
  std::vector<int32_t> values_read;                   // [R * HKV]
  std::vector<int64_t> above;                         // [HQ]
  std::vector<int64_t> above_admitted;                // [HQ]
  std::vector<uint64_t> cells;                        // [HQ, CalibrationCells(bins).size()]
  std::vector<int32_t> shadow_rows;                   // the decode rows, if asked for
  std::vector<float> mass;                            // [shadow_rows, HQ]
  std::vector<float> error;                           // [shadow_rows, HQ]
};

// A case with its keys and values in a device's cache.
class AttentionStep {
 public:
  // Appends the history in up to three steps, those of forked sequences after the others, and then
  // the rows of the step itself.
  AttentionStep(Device& device, const AttentionCase& attention_case);

  // The record of full block `ordinal` of a sequence.
  BlockRecord Record(size_t sequence, int32_t ordinal, int32_t kv_head);

  // From now on the blocks of decode rows are these, [R * HKV], in the place of SelectBlocks'
  // choice.
  void Choose(std::vector<std::vector<SelectedBlock>> blocks) { chosen_ = std::move(blocks); }

  // Runs PredictThresholds, SelectBlocks or ListBlocks, SelectPrefillBlocks, DecodeAttention,
  // PrefillAttention, CountRecall, MeasureShadow over every other decode row and, if a sequence
  // calibrates, CollectCalibration.
  // Runs them `times` times in the same memory, MeasureShadow in the first one alone, and returns
  // the last results.
  AttentionResult Run(int times = 1);

 private:
  void Append(const std::vector<int32_t>& begin, const std::vector<int32_t>& end);
  void SetTables(size_t sequence, SequenceRows& rows);
  // Takes from the tables the blocks that lie before the windows, and fills with NaN what no table
  // has any more.
  void Release(const KvLayout& layout, int32_t num_blocks);

  Device& device_;
  const AttentionCase& case_;
  std::vector<std::vector<int32_t>> block_tables_;
  std::vector<std::vector<int32_t>> no_tables_;  // as long, of what is no block
  std::vector<std::vector<std::span<const int32_t>>> more_tables_;
  std::vector<std::vector<SelectedBlock>> chosen_;
  KvLayerView kv_;
};

// The bound of eta-semantics.md ("Selection", step 1, "8-bit index" and "Index kinds") in double.
double Bound(const AttentionCase& attention_case, const BlockRecord& record, const float* q,
             float z);

// What a case's cache holds. Only some backends have a float8_e4m3 cache and an int8 index of kind
// moment; all have an index of kind outlier.
struct NarrowTypes {
  bool cache = false;
  bool index = false;
  bool outlier = false;
  bool wide_heads = false;  // of 256, in groups of up to 8
};

// The distance of a bound from its threshold at which counts have one right answer. If a float16
// value of a record rounds the other way, an 8-bit value may change by a whole step.
constexpr double Clearance(const KvGeometry& geometry) {
  if (geometry.index == IndexKind::kOutlier) return 1e-2;
  return geometry.index_dtype == DType::kInt8 ? 4e-3 : 2e-4;
}

// Adds what came after the paper to a case: sink blocks, shared and confirmed reads, tempered keys,
// sparse prefill, learned sinks;
// with kind outlier also a metric, a centre, keys that stand out, and without a gate relative
// thresholds and blocks whose deviation lies beyond g. Keys must be there, thresholds not yet.
void AddExtensions(uint64_t seed, bool outlier, AttentionCase& attention_case);

// Gives the heads of a case learned sinks, some of them far from all scores.
void AddSinks(uint64_t seed, AttentionCase& attention_case);

// Makes the layer of a case one with a window, and gives it a block table.
void AddWindow(uint64_t seed, AttentionCase& attention_case);

// A random case. Thresholds keep clear of every bound, so that rounding cannot change counts;
// relative thresholds need not (near_ties.h). An 8-bit cache gets a shape that every backend with
// such a cache supports.
AttentionCase RandomCase(uint64_t seed, NarrowTypes narrow = {});

}  // namespace eta::testing
