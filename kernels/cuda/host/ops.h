// The ops of the CUDA backend, one file each, in the order of a layer. Each op puts its kernels on
// the device's stream and returns. kernels/params/ has semantics and shapes. Errors go to
// Device::Check. All ops may be captured in a graph: they read what changes from step to step from
// context.step, never from the host.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/host/device.h"
#include "kernels/cuda/host/step_view.h"
#include "kernels/kv_geometry.h"
#include "kernels/params/calibration.h"
#include "kernels/params/layer.h"
#include "kernels/params/selection.h"
#include "kernels/rope_scaling.h"
#include "kernels/tensor_view.h"

namespace eta::cuda {

// Cosine and sine of every row and coordinate pair of the step.
struct RopeAngles {
  const float2* data = nullptr;  // [num_rows, head_dim / 2]; null: not computed yet
  int32_t head_dim = 0;
  int32_t num_rows = 0;
  RopeScaling scaling{};
  float theta = 0.0f;
};

struct Context {
  Device& device;
  Scratch& scratch;
  StepView step;
  RopeAngles angles{};        // by the sequences' bases
  RopeAngles local_angles{};  // by a base that layers have
  // The step's sequences on the host. Prefill is planned with them; steps with prefill rows are
  // never captured.
  std::span<const StepSequence> sequences{};
};

// Counts of one layer, device memory; see AttentionCounts.
struct DeviceCounts {
  int32_t* tokens_attended = nullptr;  // [R, HQ]
  int32_t* tokens_read = nullptr;      // [R, HKV]
  int32_t* values_read = nullptr;      // [R, HKV]; null: no row has confirmed reads
};

// `table` is [V, cols] of `dtype`. The rows' token ids are in the step.
void Embed(Context& context, const void* table, DType dtype, int64_t cols, float scale,
           const TensorView& out);                                                 // pointwise.cu
void RmsNorm(Context& context, const RmsNormParams& params, const int32_t* rows);  // pointwise.cu
void AddBias(Context& context, const AddBiasParams& params);                       // pointwise.cu
void NormHeads(Context& context, const NormHeadsParams& params);                   // pointwise.cu
// Computes the angles of the step's rows if the context has none yet. Null if there is no memory.
const float2* Angles(Context& context, const RopeParams& params);  // rope.cu
void Rope(Context& context, const RopeParams& params);             // rope.cu
void AppendKv(Context& context, const AppendKvParams& params);     // block_index.cu
// Shared memory that a thread block needs which writes a record, in bytes.
size_t RecordMemory(const KvGeometry& geometry);                          // block_index.cu
void PredictThresholds(Context& context, const ThresholdParams& params);  // pointwise.cu
// NormHeads, Rope, AppendKv and PredictThresholds of one layer as one kernel, for a step in which
// every sequence decodes one row, or the rows of one of `num_bundles` bundles (a padded number).
// Null `norms`, `rope` or `predict`: the layer has none. Returns false, and does nothing, if it has
// neither of the last two, or the device or the shapes have no such kernel.
bool AppendDecodeRows(Context& context, const NormHeadsParams* norms, const RopeParams* rope,
                      const AppendKvParams& append, const ThresholdParams* predict,
                      const RowBundle* bundles, int32_t num_bundles);  // append_decode.cu
// `relative`: there may be rows with relative thresholds.
void SelectBlocks(Context& context, const SelectBlocksParams& params, const DeviceCounts& counts,
                  bool relative);  // block_select.cu
// `heads`: device, [R, HKV, selection.capacity], there before the step's first kernel.
void ListBlocks(Context& context, const ListBlocksParams& params, const uint32_t* heads,
                const DeviceCounts& counts);  // block_select.cu
// `counts`: of the rows of sparse prefill; values_read is not written. `relative`: there may be
// rows with relative thresholds.
void SelectPrefillBlocks(Context& context, const SelectPrefillParams& params,
                         const DeviceCounts& counts, bool relative);  // prefill_select.cu
// Takes from the lists of rows with confirmed reads the heads that do not keep a block, and counts
// the values that are read.
void ConfirmReads(Context& context, const AttentionParams& params,
                  const DeviceCounts& counts);  // confirm_reads.cu
// What the host knows of the lists of a step's decode rows.
struct DecodeLists {
  // All rows read all their blocks, and SelectBlocks was left out. Then DecodeAttention writes the
  // counts and those of the selection.
  bool all = false;
  bool even = false;         // they are short, or about equally long: HaveEvenLists()
  bool single_rows = false;  // every sequence decodes one row
  // Rows of a sequence that read blocks together, unless they select: device, each decode row in
  // one of them.
  const RowBundle* bundles = nullptr;
  int32_t num_bundles = 0;  // padded; 0: every row is by itself
  int32_t bundle_rows = 1;  // the most rows of one
};
// Bytes of shared memory that a thread block takes for heads of 256.
inline constexpr size_t kWideHeadMemory = size_t{225} << 10;
// Whether tensor cores select and attend, also for rows of prompts. Only then DecodeAttention may
// take the place of SelectBlocks where all rows read everything.
inline bool TensorCoresTake(const Device& device, const KvGeometry& geometry,
                            int32_t num_query_heads) {
  const int32_t group = num_query_heads / geometry.num_kv_heads;
  return SupportsTensorCores(geometry.head_dim, geometry.block_size, group, geometry.dtype) ||
         (HasWideHeads(geometry.head_dim, geometry.block_size, group, geometry.dtype) &&
          device.shared_memory_per_block() >= kWideHeadMemory);
}
inline bool AttendsOnTensorCores(const Device& device, const AttentionParams& params) {
  return TensorCoresTake(device, params.geometry, params.num_query_heads);
}
// `counts`: those that SelectBlocks wrote for the same rows.
void DecodeAttention(Context& context, const AttentionParams& params, const DeviceCounts& counts,
                     const DecodeLists& lists);                          // decode_attention.cu
void PrefillAttention(Context& context, const AttentionParams& params);  // prefill_attention.cu
void CountRecall(Context& context, const RecallParams& params, int64_t* above,
                 int64_t* above_admitted);  // recall.cu; device [HQ], added to
// Measures the rows `rows` of the step, in order, into mass and error [rows.size(), HQ], device.
// Never captured.
void MeasureShadow(Context& context, const AttentionParams& params, std::span<const int32_t> rows,
                   float* mass, float* error);                               // shadow.cu
void CollectCalibration(Context& context, const CalibrationParams& params);  // calibration.cu
void SwiGlu(Context& context, const SwiGluParams& params);                   // pointwise.cu

inline size_t PoolBlockBytes(int64_t rows, int64_t num_kv_heads, int64_t capacity) {
  return static_cast<size_t>(rows * num_kv_heads * capacity) * sizeof(uint32_t);
}
// The pool's block of each block in a selection, [rows, HKV, capacity] for those of the step's rows
// that have lists, in scratch memory. SelectBlocks writes it and DecodeAttention reads it. Null if
// the device has no memory.
inline uint32_t* PoolBlocks(Context& context, int64_t num_kv_heads,
                            const BlockSelection& selection) {
  const int64_t rows = std::min<int64_t>(context.step.num_rows, selection.rows);
  return reinterpret_cast<uint32_t*>(context.scratch.Get(
      Scratch::Use::kPoolBlocks, PoolBlockBytes(rows, num_kv_heads, selection.capacity)));
}

// What screening leaves of rows with relative thresholds, per list of a selection: a number for
// every full block and head, heads up to an even number; and a sum for every 16 blocks and head.
inline int32_t MassPieces(int64_t capacity) {
  return static_cast<int32_t>((capacity + 15) / 16);
}
inline size_t MassBytes(int64_t rows, int64_t num_kv_heads, int64_t group, int64_t capacity) {
  const int64_t of_list = capacity * ((group + 1) / 2 * 2) + MassPieces(capacity) * group;
  return static_cast<size_t>(rows * num_kv_heads * of_list) * sizeof(float);
}

// Shadow measurement cuts a row's keys into parts. Memory for the sums of one row's parts.
inline constexpr int32_t kShadowKeys = 1024;
inline int32_t ShadowParts(int64_t keys) {
  return static_cast<int32_t>((keys + kShadowKeys - 1) / kShadowKeys);
}
inline size_t ShadowBytes(int64_t keys, int64_t num_query_heads, int64_t head_dim) {
  return static_cast<size_t>(num_query_heads * ShadowParts(keys) * (head_dim + 3)) * sizeof(float);
}

// The plain forms: any geometry and type, float32 too, without tensor cores. The ops above fall
// back on them. Tests compare the two forms.
struct ScreenArgs;
void PlainScreen(Context& context, const ScreenArgs& args);                   // plain_screen.cu
void PlainDecodeAttention(Context& context, const AttentionParams& params);   // plain_attention.cu
void PlainPrefillAttention(Context& context, const AttentionParams& params);  // plain_attention.cu
void PlainCollectCalibration(Context& context,
                             const CalibrationParams& params);  // plain_calibration.cu

}  // namespace eta::cuda
