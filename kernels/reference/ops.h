// The ops of the reference, one file each, in the order of a layer. kernels/params/ has their
// semantics and shapes. Together they are the method written down. Read them in this order:
// block_index, block_select, decode_attention.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/block_bound.h"
#include "kernels/params/calibration.h"
#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "kernels/params/sampling.h"
#include "kernels/params/selection.h"
#include "kernels/tensor_view.h"

namespace eta::reference {

// One row of the planned step: a token at `position` that attends to keys 0 .. position.
struct Row {
  const SequenceRows& sequence;
  int32_t index;     // row of the activations
  int32_t position;  // of the token in its sequence

  int32_t num_keys() const { return position + 1; }                                      // T
  int32_t num_full_blocks(int32_t block_size) const { return num_keys() / block_size; }  // N
};

// Calls `visit` for every row of the step, in order. The second form visits rows of one kind only.
void ForEachRow(const BatchView& batch, const std::function<void(const Row&)>& visit);
void ForEachRow(const BatchView& batch, RowKind kind, const std::function<void(const Row&)>& visit);

// The index record of one block and KV head. Vectors are float32 that hold what is stored.
struct Record {
  double* v_total;  // [d], sum of V from position 0 to the end of this block
  float* mu;        // [d], as rounded
  float* sigma;     // [d], as rounded
  float* outlier;   // [d], as rounded; kOutlier only
  float* max_norm;  // M; kMoment
  float* mu_error;  // e of an 8-bit moment record; else 0
  float* step;      // A and B of an 8-bit outlier record; else 0
  float* outlier_step;

  // As it was written.
  RecordView View(const KvGeometry& geometry) const;
};

// One layer's KV cache. Tiles are [block][token of the block][K, V][HKV] rows of d values in the
// cache's type; with float8_e4m3 an int8 exponent follows each row. Records are [block][HKV].
class KvPages {
 public:
  KvPages(const KvGeometry& geometry, const KvLayerView& kv) : geometry_(geometry), kv_(kv) {}

  static KvLayout Layout(const KvGeometry& geometry);

  const KvGeometry& geometry() const { return geometry_; }

  // The physical block of a block ordinal, by the layer's table; and the slot of a position in the
  // pool: block * b + offset.
  int32_t Block(const SequenceRows& sequence, int64_t ordinal) const;
  int64_t Slot(const SequenceRows& sequence, int32_t position) const;

  float Key(int64_t slot, int32_t kv_head, int32_t i) const;
  float Value(int64_t slot, int32_t kv_head, int32_t i) const;
  void Store(int64_t slot, int32_t kv_head, const float* key, const float* value) const;

  Record RecordOf(int32_t block, int32_t kv_head) const;

 private:
  std::byte* Row(int64_t slot, int value, int32_t kv_head) const;
  float Load(const std::byte* row, int32_t i) const;
  void StoreRow(std::byte* row, const float* values) const;

  KvGeometry geometry_;
  KvLayerView kv_;
};

// Writes the record of kind outlier of a full block and KV head.
void WriteOutlierRecord(const KvPages& pages, const KvLayerView& kv, int32_t block,
                        int32_t kv_head);

// S = s * <q, k>
double Score(const KvPages& pages, const float* query, int64_t slot, int32_t kv_head,
             float softmax_scale);

// What the row of relative thresholds compares (eta-semantics.md, "Relative thresholds"), in
// float32: l_j of every full block; and Lhat, for a query head [d] with the logit `sink`, or null.
struct EstimatedMass {
  std::vector<float> blocks;  // [N]
  float row = 0.0f;
};
EstimatedMass EstimateMass(const KvPages& pages, const Row& row, int32_t kv_head, const float* q,
                           float softmax_scale, const float* sink);

// What selection takes of its op's parameters.
struct ScreenParams {
  int32_t layer;
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  float softmax_scale;
  const float* sinks;  // [HQ] or null
};

// The full blocks of a row that one query head admits, pinned and rescued ones too.
struct Admission {
  std::vector<bool> blocks;  // [N]
  int32_t rescued = -1;      // the ordinal that was rescued
};

// Of a row with relative thresholds it writes the threshold too (block_select.cc).
Admission AdmitBlocks(const ScreenParams& params, const KvPages& pages, const Row& row,
                      int32_t query_head);

// Whether the sequence tempers the key at `position`.
bool Tempered(const SequenceRows& sequence, int32_t position);

// Confirmed reads of a decode row: takes from the masks of its lists the heads that do not keep a
// block, and counts the tokens whose V is read (confirm.cc).
void ConfirmReads(const AttentionParams& params, const Row& row);

// Softmax attention of one query head over the keys at `positions`, all of them causal, into `out`
// [d]. With `floor`, each of the row's other keys has the weight exp(0). Without any key the output
// is zero.
void Attend(const AttentionParams& params, const Row& row, int32_t query_head,
            std::span<const int32_t> positions, bool floor, float* out);

// The positions of the row's window.
std::vector<int32_t> WindowPositions(const Row& row, int32_t window);

// The positions that query head `query_head` of a decode row attends to: its blocks and the tail.
std::vector<int32_t> AdmittedPositions(const AttentionParams& params, const Row& row,
                                       int32_t query_head);

// S~ of a score, in a row of the given effective threshold; the key at `position` of the row.
double GatedLogit(const AttentionParams& params, const Row& row, double score, double threshold,
                  int32_t position);

std::unique_ptr<Matrix> PackMatrix(std::span<const HostMatrix> parts, WeightFormat format);

void Embed(const BatchView& batch, const EmbedParams& params);                  // matmul.cc
void RmsNorm(const RmsNormParams& params);                                      // pointwise.cc
void MatMul(const MatMulParams& params);                                        // matmul.cc
void AddBias(const AddBiasParams& params);                                      // pointwise.cc
void NormHeads(const NormHeadsParams& params);                                  // pointwise.cc
void Rope(const BatchView& batch, const RopeParams& params);                    // pointwise.cc
void AppendKv(const BatchView& batch, const AppendKvParams& params);            // block_index.cc
void PredictThresholds(const BatchView& batch, const ThresholdParams& params);  // pointwise.cc
void SelectBlocks(const BatchView& batch, const SelectBlocksParams& params);    // block_select.cc
void ListBlocks(const BatchView& batch, const ListBlocksParams& params);        // list_blocks.cc
void SelectPrefillBlocks(const BatchView& batch,
                         const SelectPrefillParams& params);                  // prefill_select.cc
void DecodeAttention(const BatchView& batch, const AttentionParams& params);  // decode_attention.cc
void PrefillAttention(const BatchView& batch,
                      const AttentionParams& params);                    // prefill_attention.cc
void CountRecall(const BatchView& batch, const RecallParams& params);    // recall.cc
void MeasureShadow(const BatchView& batch, const ShadowParams& params);  // shadow.cc
void CollectCalibration(const BatchView& batch,
                        const CalibrationParams& params);                 // calibration.cc
void SwiGlu(const SwiGluParams& params);                                  // pointwise.cc
void RouteRows(const BatchView& batch, const RouteRowsParams& params);    // experts.cc
void MultiplyExperts(const MultiplyExpertsParams& params);                // experts.cc
void AddExperts(const BatchView& batch, const AddExpertsParams& params);  // experts.cc
void Sample(const SampleParams& params);                                  // sampling.cc

}  // namespace eta::reference
