// The rows of a step as kernels on the device see them. Plan() writes these arrays in host memory
// and sends them in one copy; their addresses do not change from step to step (unless they had to
// grow), so that a captured graph finds the next step's rows where it found the last one's.
#pragma once

#include <cstdint>

namespace eta::cuda {

// What a row does. Rows that only fill a bucket up (kPadding) append nothing, attend to nothing and
// have zeros as attention output.
enum class RowRole : int32_t { kPadding = 0, kPrefill = 1, kDecode = 2 };

// One row. T = position + 1 keys, N = T / b full blocks.
struct StepRow {
  RowRole role;
  int32_t token;
  int32_t position;
  int32_t table_begin;  // the sequence's block table: tables[table_begin + block]
  int32_t sequence;     // index of its sequence in the batch
  int32_t frozen;       // row of StepView::frozen, or -1: the predictor's thresholds
  int32_t head_z;       // row of StepView::head_z, or -1: `z` for every head
  float rope_theta;
  float offset;  // the AttentionOptions of its sequence, from here on
  float z;
  int32_t pinned_blocks;
  int32_t rescue_chunk;
  int32_t uniform_floor;
  int32_t admit_all;
};

// Consecutive rows of one sequence, of either kind.
struct StepSequence {
  int32_t row_begin;
  int32_t num_rows;
  int32_t position;  // of the first row
  int32_t table_begin;
  RowRole role;
  int32_t calibrate;  // not 0: CollectCalibration takes it in
};

// Numbers that change from step to step and that kernels of a captured graph must read.
struct StepCounts {
  int32_t num_rows;       // R, without padding
  int32_t num_sequences;  // S
  int32_t screen_units;   // pieces of screening work, see StepView::screen_begin
};

// Blocks that one piece of screening work covers.
inline constexpr int32_t kScreenBlocks = 64;

// Passed to kernels by value; all pointers are device memory.
struct StepView {
  const StepCounts* counts;
  const StepRow* rows;            // [R padded to the bucket]
  const StepSequence* sequences;  // [S]
  const int32_t* tables;          // block tables, one behind the other
  // [padded rows + 1] prefix sums of ceil(N / kScreenBlocks) over rows that screen: decode rows
  // that are not admit_all; others bring 0.
  const int32_t* screen_begin;
  // Of the step's profiles, [F, HQ] each, of the layer at hand; what a profile has none of is any.
  const float* frozen;
  const float* head_z;
  int32_t num_rows;  // rows padded to the bucket: what a launch covers
};

}  // namespace eta::cuda
