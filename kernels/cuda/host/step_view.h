// The rows of a step as kernels on the device see them. Plan() writes these arrays in host memory
// and sends them in one copy. Their addresses do not change from step to step, unless they had to
// grow. So a captured graph finds each step's rows in the same place.
#pragma once

#include <cstdint>

#include "kernels/batch.h"

namespace eta::cuda {

// The work of a row. A padding row (kPadding) appends nothing, attends to nothing and gets zeros as
// attention output.
enum class RowRole : int32_t { kPadding = 0, kPrefill = 1, kDecode = 2 };

// Which keys of a sequence are tempered: bit t % 32 of tables[begin + t / 32], as uint32, is key t.
// Keys after the last of `words` are not.
struct TemperedKeys {
  int32_t begin;
  int32_t words;
};

// One row. T = position + 1 keys, N = T / b full blocks.
struct StepRow {
  RowRole role;
  int32_t token;
  int32_t position;
  int32_t table_begin;  // the layer's block table of the sequence: tables[table_begin + block]
  int32_t sequence;     // index of its sequence in the batch
  int32_t frozen;       // row of StepView::frozen, or -1: the predictor's thresholds
  int32_t head_z;       // row of StepView::head_z, or -1: `attention.z` for every head
  float rope_theta;
  TemperedKeys tempered;
  AttentionOptions attention;  // of its sequence
};

// Consecutive rows of one sequence, of either kind.
struct StepSequence {
  int32_t row_begin;
  int32_t num_rows;
  int32_t position;  // of the first row
  int32_t table_begin;
  RowRole role;
  int32_t calibrate;  // not 0: CollectCalibration counts over it
  int32_t sparse;     // not 0: rows of sparse prefill
  TemperedKeys tempered;
};

// Consecutive decode rows of one sequence. Full attention, and that of a window, reads their keys
// once for all of them.
struct RowBundle {
  int32_t row_begin;
  int32_t num_rows;  // at most kBundleRows; 0: none
};
inline constexpr int32_t kBundleRows = 8;

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
  const int32_t* tables;          // block tables one after the other, then the tempered keys
  // [padded rows + 1] prefix sums of ceil(N / kScreenBlocks) over the rows that screen: decode rows
  // that are not admit_all, or whose thresholds are relative. Other rows add 0.
  const int32_t* screen_begin;
  // Tables of the step's profiles for the current layer, [F, HQ] each. If a profile lacks a table,
  // its row there is undefined.
  const float* frozen;
  const float* head_z;
  int32_t num_rows;  // rows padded to the bucket, which a launch covers
};

}  // namespace eta::cuda
