// One layer's attention over a ragged step, run on any backend through the ops in the model's
// order, with everything that can be compared.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {

struct SequenceCase {
  RowKind kind = RowKind::kDecode;
  int32_t position = 0;  // keys already in the cache before the step
  int32_t num_rows = 1;
  AttentionOptions attention;
  HostTensor k;                   // [position + num_rows, HKV * d]
  HostTensor v;                   // [position + num_rows, HKV * d]
  std::vector<float> thresholds;  // [HQ]; empty: the case's predictor gives them
  std::vector<float> head_z;      // [HQ]; empty: attention.z for every head
  bool calibrate = false;         // of prefill rows: cells are collected over them
  // A forked prefix: the first `shared_blocks` blocks are those of sequence `parent`, which comes
  // earlier, shares nothing itself, and holds the same keys and values there before the step.
  int32_t parent = -1;
  int32_t shared_blocks = 0;

  int32_t num_keys() const { return position + num_rows; }
  float z(int32_t query_head) const {
    return head_z.empty() ? attention.z : head_z[static_cast<size_t>(query_head)];
  }
};

struct AttentionCase {
  KvGeometry geometry;
  int32_t num_query_heads = 1;
  Gate gate = Gate::kSilu;
  float beta = 5.0f;
  ScoreBins bins;
  std::vector<SequenceCase> sequences;
  HostTensor q;                       // [R, HQ * d], the sequences' rows one after another
  HostTensor predictor_weight;        // [HQ, HQ * d]; empty: no sequence needs one
  std::vector<float> predictor_bias;  // [HQ]
  uint64_t seed = 0;  // of what must not matter: physical blocks, how the history was cut

  int32_t group() const { return num_query_heads / geometry.num_kv_heads; }
  float softmax_scale() const;
  std::string Describe() const;
};

// A block that a row reads, and the query heads of the group that admitted it.
using SelectedBlock = std::pair<uint32_t, uint32_t>;

struct AttentionResult {
  HostTensor out;                                     // [R, HQ * d]
  std::vector<std::vector<SelectedBlock>> selection;  // [R * HKV]
  std::vector<int32_t> tokens_attended;               // [R * HQ], -1 for prefill rows
  std::vector<int32_t> tokens_read;                   // [R * HKV], -1 for prefill rows
  std::vector<int64_t> above;                         // [HQ]
  std::vector<int64_t> above_admitted;                // [HQ]
  std::vector<uint64_t> cells;                        // [HQ, CalibrationCells(bins).size()]
};

// A case with its keys and values in a device's cache.
class AttentionStep {
 public:
  // Appends the history in up to three steps (forked sequences' after the others'), then the rows
  // of the step itself.
  AttentionStep(Device& device, const AttentionCase& attention_case);

  // Of full block `ordinal` of a sequence.
  BlockRecord Record(size_t sequence, int32_t ordinal, int32_t kv_head);

  // PredictThresholds, SelectBlocks, DecodeAttention, PrefillAttention, CountRecall and, where a
  // sequence calibrates, CollectCalibration; the same ops `times` times in the same memory, of
  // which the last one counts.
  AttentionResult Run(int times = 1);

 private:
  void Append(const std::vector<int32_t>& begin, const std::vector<int32_t>& end);

  Device& device_;
  const AttentionCase& case_;
  std::vector<std::vector<int32_t>> block_tables_;
  KvLayerView kv_;
};

// The bound of eta-semantics.md, "Selection" step 1 and "8-bit index", in double.
double Bound(const AttentionCase& attention_case, const BlockRecord& record, const float* q,
             float z);

// Types that not every backend has: a float8_e4m3 cache and an int8 index.
struct NarrowTypes {
  bool cache = false;
  bool index = false;
};

// By how much a bound must be clear of its threshold for counts to have one right answer. Where a
// float16 value of a record rounds the other way, an 8-bit one may change by a whole step.
constexpr double Clearance(DType index_dtype) {
  return index_dtype == DType::kInt8 ? 4e-3 : 2e-4;
}

// A random case; thresholds keep clear of every bound, so that counts are beyond rounding. With an
// 8-bit cache, of a shape that every backend with one takes.
AttentionCase RandomCase(uint64_t seed, NarrowTypes narrow = {});

}  // namespace eta::testing
