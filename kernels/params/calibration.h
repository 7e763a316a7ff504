// The parameters of the ops that measure attention beside what is served. Pointers and shapes are
// as in layer.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/calibration_cells.h"
#include "kernels/params/selection.h"

namespace eta {

// Counts of each decode row's keys with S >= tau_eff, and of those of them that are in admitted
// blocks or the tail. Their quotient is the recall of the selection. The op reads every key, so it
// is for evaluation only. REQUIRES: no window.
struct RecallParams {
  AttentionParams attention;
  int64_t* above;           // [HQ], added to; host
  int64_t* above_admitted;  // [HQ], added to; host
};

// What chosen decode rows would have had from full attention, beside what they got. Per query head:
// `mass`, the share of full attention's softmax that lies on keys which the head attended to, and
// `error`, |out - full| / |full| over the head's d outputs (0 where |full| is 0). The op follows
// the DecodeAttention of the same step and reads every key of the chosen rows. A head's sink counts
// among what it attended to. REQUIRES: no window.
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

}  // namespace eta
